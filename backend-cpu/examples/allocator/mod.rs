//! The allocator of the command, with its settings: memory of one step serves the next.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings of jemalloc: huge pages, one arena for all threads, from which large blocks come too, and
/// no memory returned to the system.
#[expect(unsafe_code, reason = "jemalloc reads its settings from a symbol of this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8; 78] =
    b"thp:always,narenas:1,oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1\0";
