//! Descriptors that are kept open for nothing: who finds that there are no others left gives some
//! of them up, does its work with the room they leave, and takes them back.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Descriptors of one loan: a program with its pipes needs the most.
const EACH: usize = 8;

#[derive(Debug)]
pub struct DescriptorReserve {
    kept: Mutex<Vec<OwnedFd>>,
    loans: usize,
    free: Semaphore,
}

/// Room for eight descriptors; dropping it takes them back.
#[derive(Debug)]
pub struct Loan<'r> {
    reserve: &'r DescriptorReserve,
    permit: Option<SemaphorePermit<'r>>,
}

impl DescriptorReserve {
    /// Enough for this many loans at once.
    pub fn new(loans: usize) -> DescriptorReserve {
        let reserve =
            DescriptorReserve { kept: Mutex::default(), loans, free: Semaphore::new(loans) };
        reserve.fill();
        reserve
    }

    /// Waits for a loan, and makes room for it.
    pub async fn lend(&self) -> Loan<'_> {
        // The semaphore is never closed.
        let permit = self.free.acquire().await.ok();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let left = kept.len().saturating_sub(EACH);
        kept.truncate(left);
        Loan { reserve: self, permit }
    }

    /// Gives up all of them, until [`DescriptorReserve::fill`].
    pub fn give_up(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Opens what is missing, as far as there is room.
    pub fn fill(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let lent = self.loans - self.free.available_permits();
        while kept.len() < (self.loans - lent) * EACH {
            let Ok(null) = File::open("/dev/null") else { return };
            kept.push(null.into());
        }
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.permit = None;
        self.reserve.fill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(reserve: &DescriptorReserve) -> usize {
        reserve.kept.lock().expect("locked").len()
    }

    #[tokio::test]
    async fn what_is_lent_is_taken_back() {
        let reserve = DescriptorReserve::new(2);
        assert_eq!(kept(&reserve), 2 * EACH);
        let first = reserve.lend().await;
        assert_eq!(kept(&reserve), EACH);
        let second = reserve.lend().await;
        assert_eq!(kept(&reserve), 0);
        assert!(reserve.free.try_acquire().is_err(), "a third waits");
        drop(first);
        assert_eq!(kept(&reserve), EACH);
        drop(second);
        assert_eq!(kept(&reserve), 2 * EACH);
    }
}
