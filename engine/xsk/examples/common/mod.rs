//! The start of both examples.

use std::error::Error;
use std::{env, fs};

use ringway_xsk::{
    PageSize, Pool, Redirect, Socket, SocketConfig, Umem, UmemConfig, XdpMode, node_of_interface,
};

/// A socket on the queue that the command line names, filled from now on.
pub struct Opened {
    pub pool: Pool,
    pub socket: Socket,
    /// Detached when dropped.
    _redirect: Redirect,
}

/// `INTERFACE [QUEUE]`. Says what was obtained.
pub fn open() -> Result<Opened, Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let interface = arguments.next().ok_or("usage: INTERFACE [QUEUE]")?;
    let queue = arguments.next().map_or(Ok(0), |queue| queue.parse())?;
    if carries_default_route(&interface)? {
        return Err(format!(
            "{interface} carries the default route: all it receives would end here. Take another."
        )
        .into());
    }
    let umem = Umem::new(&UmemConfig {
        frames: 8192,
        pages: PageSize::Huge2M,
        node: node_of_interface(&interface),
        ..UmemConfig::default()
    })?;
    println!("memory: {}", umem.obtained());
    let pool = umem.pool().ok_or("the UMEM has one pool")?;
    let socket = Socket::open(&pool, &interface, queue, &SocketConfig::default())?;
    println!("{}: {:?}", socket.name(), socket.granted());
    // Native where the driver can.
    let redirect = Redirect::attach(&interface, XdpMode::Native, queue + 1).or_else(|native| {
        println!("{native}");
        Redirect::attach(&interface, XdpMode::Generic, queue + 1)
    })?;
    redirect.map().insert(queue, &socket)?;
    Ok(Opened { pool, socket, _redirect: redirect })
}

fn carries_default_route(interface: &str) -> Result<bool, std::io::Error> {
    let routes = fs::read_to_string("/proc/net/route")?;
    let is_default = |line: &str| {
        let mut fields = line.split_whitespace();
        fields.next() == Some(interface) && fields.next() == Some("00000000")
    };
    Ok(routes.lines().any(is_default))
}
