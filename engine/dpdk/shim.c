// What DPDK has in its headers alone: functions that are inline, and structures whose layout differs
// from release to release.
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_mempool.h>

// As src/mbuf.rs has it.
_Static_assert(offsetof(struct rte_mbuf, buf_addr) == 0, "buf_addr");
_Static_assert(offsetof(struct rte_mbuf, data_off) == 16, "data_off");
_Static_assert(offsetof(struct rte_mbuf, nb_segs) == 20, "nb_segs");
_Static_assert(offsetof(struct rte_mbuf, pkt_len) == 36, "pkt_len");
_Static_assert(offsetof(struct rte_mbuf, data_len) == 40, "data_len");
_Static_assert(offsetof(struct rte_mbuf, buf_len) == 54, "buf_len");
_Static_assert(offsetof(struct rte_mbuf, next) == 64, "next");

int rw_dpdk_errno(void)
{
	return rte_errno;
}

int rw_dpdk_join(void)
{
	return rte_thread_register();
}

void rw_dpdk_leave(void)
{
	rte_thread_unregister();
}

uint16_t rw_dpdk_rx(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, packets, count);
}

uint16_t rw_dpdk_tx(uint16_t port, uint16_t queue, struct rte_mbuf **packets, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, packets, count);
}

static void unmap(struct rte_mempool_memhdr *chunk, void *start)
{
	munmap(start, chunk->len + ((char *)chunk->addr - (char *)start));
}

// A pool of mbufs; null: see errno. Where DPDK has no huge pages its memory is a file's, which the
// kernel has in small pages; anonymous memory gets huge ones if the system may give them. Without
// `dense` mbufs do not cross pages: a device reads them by itself, and pages lie anywhere.
struct rte_mempool *rw_dpdk_pool(const char *name, unsigned int count, unsigned int cache,
				 uint16_t room, int node, int dense)
{
	struct rte_pktmbuf_pool_private settings = { .mbuf_data_room_size = room };
	struct rte_mempool *pool;
	int placed;
	size_t bytes;
	char *start, *aligned;
	if (rte_eal_has_hugepages() || !dense)
		return rte_pktmbuf_pool_create(name, count, cache, 0, room, node);
	pool = rte_mempool_create_empty(name, count, sizeof(struct rte_mbuf) + room, cache,
					sizeof(settings), node, RTE_MEMPOOL_F_NO_IOVA_CONTIG);
	if (!pool)
		return NULL;
	rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	rte_pktmbuf_pool_init(pool, &settings);
	bytes = RTE_ALIGN(count * (size_t)(pool->header_size + pool->elt_size + pool->trailer_size),
			  RTE_PGSIZE_2M);
	start = mmap(NULL, bytes + RTE_PGSIZE_2M, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (start == MAP_FAILED) {
		rte_errno = errno;
		rte_mempool_free(pool);
		return NULL;
	}
	aligned = RTE_PTR_ALIGN(start, RTE_PGSIZE_2M);
	madvise(aligned, bytes, MADV_HUGEPAGE);
	placed = rte_mempool_populate_iova(pool, aligned, (rte_iova_t)aligned, bytes, unmap, start);
	if (placed < (int)count) {
		rte_errno = ENOMEM;
		rte_mempool_free(pool);
		if (placed <= 0)
			munmap(start, bytes + RTE_PGSIZE_2M);
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

int rw_dpdk_allocate(struct rte_mempool *pool, struct rte_mbuf **packets, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, packets, count);
}

static void removed(const char *device, enum rte_dev_event_type event, void *flag)
{
	(void)device;
	if (event == RTE_DEV_EVENT_REMOVE)
		__atomic_store_n((uint8_t *)flag, 1, __ATOMIC_RELAXED);
}

// Sets a flag, which must live as long as the program, once the kernel wants a device of VFIO back.
int rw_dpdk_watch(const char *device, uint8_t *flag)
{
	return rte_dev_event_callback_register(device, removed, flag);
}

// The first port of a device; negative: none, or an error.
int rw_dpdk_port_of(const char *device)
{
	struct rte_dev_iterator iterator;
	uint16_t port = RTE_MAX_ETHPORTS, found = RTE_MAX_ETHPORTS;
	RTE_ETH_FOREACH_MATCHING_DEV(port, device, &iterator)
	{
		if (found == RTE_MAX_ETHPORTS)
			found = port;
	}
	return found == RTE_MAX_ETHPORTS ? -ENODEV : found;
}

// Most queues in each direction, the driver's name, and the NUMA node (negative: any).
int rw_dpdk_info(uint16_t port, uint16_t *queues, char *driver, size_t driver_len, int *node)
{
	struct rte_eth_dev_info info;
	int error = rte_eth_dev_info_get(port, &info);
	if (error)
		return error;
	*queues = RTE_MIN(info.max_rx_queues, info.max_tx_queues);
	strncpy(driver, info.driver_name ? info.driver_name : "", driver_len - 1);
	driver[driver_len - 1] = 0;
	*node = rte_eth_dev_socket_id(port);
	return 0;
}

// Sets it up with a pool for each queue, and starts it. `step`: what failed. 1: all of its packets
// may come to one queue.
int rw_dpdk_start(uint16_t port, uint16_t queues, uint16_t rx_slots, uint16_t tx_slots,
		  struct rte_mempool **pools, const char **step)
{
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf = { 0 };
	int error, one_queue = 0;
	*step = "asking for its abilities";
	if ((error = rte_eth_dev_info_get(port, &info)))
		return error;
	if (queues > 1) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf =
			(RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP) &
			info.flow_type_rss_offloads;
		one_queue = conf.rx_adv_conf.rss_conf.rss_hf == 0;
		if (one_queue)
			conf.rxmode.mq_mode = RTE_ETH_MQ_RX_NONE;
	}
	conf.txmode.offloads = RTE_ETH_TX_OFFLOAD_MULTI_SEGS & info.tx_offload_capa;
	*step = "configuring it";
	if ((error = rte_eth_dev_configure(port, queues, queues, &conf)))
		return error;
	*step = "sizing its rings";
	if ((error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx_slots, &tx_slots)))
		return error;
	for (uint16_t queue = 0; queue < queues; queue++) {
		*step = "making a receive queue";
		error = rte_eth_rx_queue_setup(port, queue, rx_slots, SOCKET_ID_ANY, NULL,
					       pools[queue]);
		if (error)
			return error;
		*step = "making a transmit queue";
		error = rte_eth_tx_queue_setup(port, queue, tx_slots, SOCKET_ID_ANY, NULL);
		if (error)
			return error;
	}
	*step = "starting it";
	if ((error = rte_eth_dev_start(port)))
		return error;
	// A driver without it brings all packets anyway.
	error = rte_eth_promiscuous_enable(port);
	*step = "having it bring all packets";
	return error == 0 || error == -ENOTSUP ? one_queue : error;
}

// 1: up; 0: down; negative: an error.
int rw_dpdk_link(uint16_t port)
{
	struct rte_eth_link link;
	int error = rte_eth_link_get_nowait(port, &link);
	return error ? error : link.link_status == RTE_ETH_LINK_UP;
}

struct rw_dpdk_counts {
	uint64_t received, transmitted, missed, errors_in, errors_out, no_buffer;
};

int rw_dpdk_counts(uint16_t port, struct rw_dpdk_counts *counts)
{
	struct rte_eth_stats stats;
	int error = rte_eth_stats_get(port, &stats);
	if (error)
		return error;
	*counts = (struct rw_dpdk_counts){ stats.ipackets, stats.opackets, stats.imissed,
					   stats.ierrors,  stats.oerrors,  stats.rx_nombuf };
	return 0;
}

_Static_assert(RTE_ETH_XSTATS_NAME_SIZE == 64, "names of counters");
_Static_assert(sizeof(struct rte_eth_xstat) == 16, "counters");
