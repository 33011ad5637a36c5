//! Atomics and places of a ring: those of the CPU, or loom's, which try every order of events that
//! the memory model allows.

#[cfg(loom)]
pub(crate) use self::modelled::{AtomicU32, Slot};
#[cfg(not(loom))]
pub(crate) use self::real::{AtomicU32, Slot};

#[cfg(not(loom))]
mod real {
    use std::cell::UnsafeCell;
    use std::ptr::NonNull;
    pub(crate) use std::sync::atomic::AtomicU32;

    /// A place in a ring: as large as what lies there, and never referred to, since the other side
    /// may write it.
    #[repr(transparent)]
    pub(crate) struct Slot<T>(UnsafeCell<T>);

    impl<T: Copy> Slot<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// # Safety
        /// It is there, initialized, and nobody writes to it meanwhile.
        #[inline]
        pub(crate) unsafe fn read(this: NonNull<Self>) -> T {
            // SAFETY: the caller's; a Slot<T> lies in memory as a T.
            unsafe { this.cast::<T>().read() }
        }

        /// # Safety
        /// It is there, and nobody reads or writes it meanwhile.
        #[inline]
        pub(crate) unsafe fn write(this: NonNull<Self>, value: T) {
            // SAFETY: the caller's; a Slot<T> lies in memory as a T.
            unsafe { this.cast::<T>().write(value) }
        }
    }
}

#[cfg(loom)]
mod modelled {
    use std::ptr::NonNull;

    use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::AtomicU32;

    /// A place in a ring; loom finds who reads it while another writes.
    pub(crate) struct Slot<T>(UnsafeCell<T>);

    impl<T: Copy> Slot<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        pub(crate) unsafe fn read(this: NonNull<Self>) -> T {
            // SAFETY: the caller's for the place, and loom's for the access.
            unsafe { this.as_ref().0.with(|value| value.read()) }
        }

        pub(crate) unsafe fn write(this: NonNull<Self>, value: T) {
            // SAFETY: the caller's for the place, and loom's for the access.
            unsafe { this.as_ref().0.with_mut(|place| place.write(value)) }
        }
    }
}
