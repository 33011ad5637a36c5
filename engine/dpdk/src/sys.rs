//! DPDK's functions, and those of `shim.c`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The part of `struct rte_mbuf` that is used here. `shim.c` compares the layout with DPDK's.
#[repr(C)]
pub struct Header {
    pub buf_addr: *mut u8,
    _iova: u64,
    pub data_off: u16,
    _refcnt: u16,
    pub nb_segs: u16,
    _port: u16,
    _ol_flags: u64,
    _packet_type: u32,
    pub pkt_len: u32,
    pub data_len: u16,
    _vlan_tci: u16,
    _hash: [u32; 2],
    _vlan_tci_outer: u16,
    pub buf_len: u16,
    _pool: *mut c_void,
    pub next: *mut Header,
}

/// `struct rte_mempool`.
pub type Mempool = c_void;

/// Packets of a device since it was started.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub received: u64,
    pub transmitted: u64,
    /// Dropped by the device, whose ring was full.
    pub missed: u64,
    pub errors_in: u64,
    pub errors_out: u64,
    /// Times the driver got no buffer.
    pub no_buffer: u64,
}

/// `struct rte_eth_xstat_name`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CounterName(pub [c_char; 64]);

/// `struct rte_eth_xstat`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Counter {
    /// Its index among the names.
    pub id: u64,
    pub value: u64,
}

unsafe extern "C" {
    pub fn rte_version() -> *const c_char;
    pub fn rte_eal_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub fn rte_eal_hotplug_add(
        bus: *const c_char,
        device: *const c_char,
        options: *const c_char,
    ) -> c_int;
    pub fn rte_eal_hotplug_remove(bus: *const c_char, device: *const c_char) -> c_int;
    pub fn rte_pktmbuf_free_bulk(packets: *mut *mut Header, count: c_uint);
    pub fn rte_mempool_avail_count(pool: *const Mempool) -> c_uint;
    pub fn rte_mempool_free(pool: *mut Mempool);
    pub fn rte_eth_dev_stop(port: u16) -> c_int;
    pub fn rte_eth_dev_close(port: u16) -> c_int;
    pub fn rte_eth_promiscuous_disable(port: u16) -> c_int;
    pub fn rte_eth_dev_get_mtu(port: u16, mtu: *mut u16) -> c_int;
    pub fn rte_eth_dev_is_removed(port: u16) -> c_int;
    pub fn rte_eth_macaddr_get(port: u16, mac: *mut [u8; 6]) -> c_int;
    pub fn rte_eth_xstats_get_names(port: u16, names: *mut CounterName, size: c_uint) -> c_int;
    pub fn rte_eth_xstats_get(port: u16, counters: *mut Counter, size: c_uint) -> c_int;

    pub fn rw_dpdk_errno() -> c_int;
    pub fn rw_dpdk_join() -> c_int;
    pub fn rw_dpdk_leave();
    pub fn rw_dpdk_rx(port: u16, queue: u16, packets: *mut *mut Header, count: u16) -> u16;
    pub fn rw_dpdk_tx(port: u16, queue: u16, packets: *mut *mut Header, count: u16) -> u16;
    pub fn rw_dpdk_pool(
        name: *const c_char,
        count: c_uint,
        cache: c_uint,
        room: u16,
        node: c_int,
        dense: c_int,
    ) -> *mut Mempool;
    pub fn rw_dpdk_allocate(pool: *mut Mempool, packets: *mut *mut Header, count: c_uint) -> c_int;
    pub fn rw_dpdk_watch(device: *const c_char, flag: *const u8) -> c_int;
    pub fn rw_dpdk_port_of(device: *const c_char) -> c_int;
    pub fn rw_dpdk_info(
        port: u16,
        queues: *mut u16,
        driver: *mut c_char,
        driver_len: usize,
        node: *mut c_int,
    ) -> c_int;
    pub fn rw_dpdk_start(
        port: u16,
        queues: u16,
        rx_slots: u16,
        tx_slots: u16,
        pools: *mut *mut Mempool,
        step: *mut *const c_char,
    ) -> c_int;
    pub fn rw_dpdk_link(port: u16) -> c_int;
    pub fn rw_dpdk_counts(port: u16, counts: *mut Counts) -> c_int;
}
