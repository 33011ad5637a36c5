//! Does it accept a connection?

use std::time::Duration;

use super::failure::Failure;
use super::peer::Peer;

/// Passes when a connection is accepted within `limit`.
pub async fn tcp(peer: &Peer, limit: Duration) -> Result<(), Failure> {
    peer.bounded(limit, async {
        let stream = peer.connect().await?;
        // Checks of all backends of a service share its address, so ports must not wait long after.
        if peer.probe_route.is_some() {
            let _ = stream.set_zero_linger();
        }
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const SOON: Duration = Duration::from_secs(2);

    #[tokio::test]
    async fn results() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let peer = Peer::new(listener.local_addr().expect("address"), None);
        tcp(&peer, SOON).await.expect("passes");
        drop(listener);
        assert!(matches!(tcp(&peer, SOON).await, Err(Failure::Refused(_))));
    }
}
