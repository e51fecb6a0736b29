//! A GPU emulated on the processor: the kernels' own text, compiled by a C++ compiler behind `shim.h`.
//!
//! It finds wrong numbers, elements left out, reads and writes outside of a result, forgotten barriers and
//! results that hang on the order of threads. It says nothing of speed.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use chimera_backend_cuda::gpu::{
    Arg, At, Driver, Element, Gpu, Lane, Launch, Operand, Place, Product, kernels, source,
};
use chimera_core::kernels::{Clock, DeviceError, Result};
use libloading::Library;

type Emulate = unsafe extern "C" fn(
    *const c_char,
    c_int,
    c_int,
    c_int,
    usize,
    *const *const c_void,
    c_int,
) -> *const c_char;

/// Bytes beside every allocation that nobody may write to.
const MARGIN: usize = 256;
const MARK: u8 = 0xa5;

/// A GPU with such activations, whose memory holds no numbers before it is written.
pub(crate) fn gpu(activations: Element) -> Gpu<Emulated> {
    gpu_with(activations, usize::MAX, Duration::ZERO)
}

/// One with so many bytes of memory, which lets the host wait so long for what it reads.
pub(crate) fn gpu_with(activations: Element, bytes: usize, pause: Duration) -> Gpu<Emulated> {
    let free = Arc::new(Free { now: AtomicUsize::new(bytes), least: AtomicUsize::new(bytes) });
    Gpu::new(Emulated { library: library(activations), free, pause }, activations).poisoned()
}

#[derive(Clone)]
pub(crate) struct Emulated {
    library: &'static Compiled,
    pub(crate) free: Arc<Free>,
    /// How long the host waits before each copy.
    pause: Duration,
}

/// Bytes of memory that are left.
pub(crate) struct Free {
    now: AtomicUsize,
    /// So far.
    pub(crate) least: AtomicUsize,
}

/// The kernels for one kind of activation.
struct Compiled {
    emulate: Emulate,
    /// Blocks run one after another, so launches do.
    n_launches: Mutex<usize>,
    _library: Library,
}

/// Compiled once for all tests of a program.
fn library(activations: Element) -> &'static Compiled {
    static LIBRARIES: [OnceLock<Compiled>; 2] = [const { OnceLock::new() }; 2];
    let (index, name) = match activations {
        Element::F32 => (0, "f32"),
        Element::Bf16 => (1, "bf16"),
    };
    LIBRARIES[index].get_or_init(|| compile(name, activations))
}

fn compile(name: &str, activations: Element) -> Compiled {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let stem = format!("kernels-{name}-{}-{number}", std::process::id());
    let file =
        |suffix: &str| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{stem}.{suffix}"));
    let (text, library) = (file("cpp"), file("so"));
    let shim = include_str!("shim.h");
    let source = source(activations);
    let table: String = kernels(&source)
        .map(|kernel| format!("static bool {kernel}_ = emulation::add<{kernel}>(\"{kernel}\");\n"))
        .collect();
    // The only other name of a block's dynamic shared memory.
    let source = source.replace(
        "extern __shared__ __align__(16) float shared[];",
        "float* shared = (float*)dynamic_shared;",
    );
    std::fs::write(&text, format!("{shim}{source}{table}")).unwrap();
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-w", "-U_FORTIFY_SOURCE"];
    let mut command = Command::new(&compiler);
    let output = command.args(flags).arg("-o").arg(&library).arg(&text).output();
    let output =
        output.unwrap_or_else(|e| panic!("the tests need a C++ compiler, {compiler}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the kernels do not compile:\n{said}");
    // SAFETY: the library was compiled just now from the project's own text, whose initialisers only fill a
    // table; `emulate` has this signature in `shim.h`.
    let compiled = unsafe {
        let loaded = Library::new(&library).unwrap();
        let emulate = *loaded.get::<Emulate>(b"emulate\0").unwrap();
        Compiled { emulate, n_launches: Mutex::new(0), _library: loaded }
    };
    for file in [text, library] {
        let _ = std::fs::remove_file(file); // what is loaded stays
    }
    compiled
}

/// An allocation with its margins.
pub(crate) struct Memory {
    bytes: Arc<Mutex<Box<[u128]>>>,
    start: *mut u8,
    len: usize,
    free: Arc<Free>,
    /// Whether it was handed to another device, and is a message's and no longer this one's.
    is_sent: AtomicBool,
}

// SAFETY: the bytes are reached through `start` by one launch, product or copy at a time, under the lock of
// the emulated device.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize, free: &Arc<Free>) -> Result<Self> {
        let take = |free: usize| free.checked_sub(len);
        let taken = free.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = taken.map_err(|_| DeviceError::OutOfMemory {
            device: "emulated GPU".into(),
            what: "a tensor".into(),
            asked_bytes: len as u64,
        })?;
        free.least.fetch_min(before - len, Ordering::Relaxed);
        let words = (len + 2 * MARGIN).div_ceil(size_of::<u128>());
        let mark = u128::from_ne_bytes([MARK; 16]);
        let mut bytes = vec![mark; words].into_boxed_slice();
        // SAFETY: the margin is inside of the allocation.
        let start = unsafe { bytes.as_mut_ptr().cast::<u8>().add(MARGIN) };
        let (bytes, free) = (Arc::new(Mutex::new(bytes)), Arc::clone(free));
        Ok(Self { bytes, start, len, free, is_sent: AtomicBool::new(false) })
    }

    fn check(&self) {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let all = bytes.len() * size_of::<u128>();
        let is_whole = |mut range: Range<usize>| {
            // SAFETY: the range is inside of the allocation.
            range.all(|i| unsafe { *self.start.sub(MARGIN).add(i) } == MARK)
        };
        let whole = is_whole(0..MARGIN) && is_whole(MARGIN + self.len..all);
        assert!(whole, "written outside of an allocation of {} bytes", self.len);
    }

    /// What was sent is counted no longer.
    fn give_back(&self) {
        if !self.is_sent.swap(true, Ordering::Relaxed) {
            self.free.now.fetch_add(self.len, Ordering::Relaxed);
        }
    }

    fn at(&self, start: usize) -> *mut u8 {
        assert!(start <= self.len);
        self.start.wrapping_add(start)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Emulated {
    /// Nothing else happens on the device meanwhile; says whether to take threads backwards.
    fn alone<R>(&self, act: impl FnOnce(bool) -> R) -> R {
        let mut n = self.library.n_launches.lock().unwrap_or_else(PoisonError::into_inner);
        *n += 1;
        act((*n).is_multiple_of(2))
    }
}

impl Driver for Emulated {
    type Memory = Memory;
    type Lane = Beside;

    fn device(&self) -> String {
        "emulated GPU".into()
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        Memory::new(bytes, &self.free)
    }

    fn fill(&self, memory: &Memory, byte: u8) -> Result<()> {
        // SAFETY: as long as the memory is.
        self.alone(|_| unsafe { memory.start.write_bytes(byte, memory.len) });
        Ok(())
    }

    fn write(&self, memory: &Memory, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= memory.len);
        // SAFETY: as long as `bytes`, which fit.
        self.alone(|_| unsafe { memory.start.copy_from(bytes.as_ptr(), bytes.len()) });
        Ok(())
    }

    fn read(&self, memory: &Memory, start: usize, into: &mut [u8]) -> Result<()> {
        assert!(start + into.len() <= memory.len);
        std::thread::sleep(self.pause);
        // SAFETY: as long as `into`, which lies inside.
        self.alone(|_| unsafe { memory.at(start).copy_to(into.as_mut_ptr(), into.len()) });
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_, Memory>) -> Result<()> {
        let mut tables = Vec::new();
        let values: Vec<u64> = launch.args.iter().map(|arg| bits(arg, &mut tables)).collect();
        let pointers: Vec<*const c_void> = values.iter().map(|v| (&raw const *v).cast()).collect();
        let name = CString::new(launch.kernel).unwrap();
        let [across, down] = launch.grid.map(|n| n as c_int);
        let (block, args) = (launch.block as c_int, pointers.as_ptr());
        let fault = self.alone(|backwards| {
            // SAFETY: the arguments are those of the kernel, in its order; that they are is what is tested.
            unsafe {
                let fault = (self.library.emulate)(
                    name.as_ptr(),
                    across,
                    down,
                    block,
                    launch.shared,
                    args,
                    c_int::from(backwards),
                );
                (!fault.is_null()).then(|| CStr::from_ptr(fault).to_string_lossy().into_owned())
            }
        });
        launch.args.iter().for_each(check);
        let failed =
            |reason| DeviceError::Failed { device: self.device(), op: launch.kernel, reason };
        fault.map_or(Ok(()), |reason| Err(failed(reason)))
    }

    fn multiply(&self, product: &Product<'_, Memory>) -> Result<()> {
        let Product { m, n, k, ref a, ref b, ref into, add } = *product;
        let (a_steps, b_steps) = (steps(a), steps(b));
        self.alone(|_| {
            for i in 0..m {
                for j in 0..n {
                    let each = |l| {
                        get(&a.place, i * a_steps.0 + l * a_steps.1)
                            * get(&b.place, l * b_steps.0 + j * b_steps.1)
                    };
                    let sum: f64 = (0..k).map(each).sum();
                    let at = i * into.pitch + j;
                    let before = if add { get(into, at) } else { 0.0 };
                    put(into, at, before + sum);
                }
            }
        });
        into.memory.check();
        Ok(())
    }

    fn publish(&self, memory: &Memory) -> Result<()> {
        memory.give_back();
        Ok(())
    }

    fn wait_for(&self, _: &Memory) -> Result<()> {
        Ok(())
    }

    /// A copy, as between devices that are apart.
    fn adopt(&self, memory: &Memory, bytes: Range<usize>) -> Result<Option<Memory>> {
        let copy = self.allocate(bytes.len())?;
        // SAFETY: both as long as the range, which lies inside.
        self.alone(|_| unsafe { copy.start.copy_from(memory.at(bytes.start), bytes.len()) });
        Ok(Some(copy))
    }

    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        Ok(None) // work is done when it is asked for
    }

    fn lane(&self) -> Result<Beside> {
        Ok(Beside { free: Arc::clone(&self.free) })
    }
}

/// A queue whose work is done when it is added.
pub(crate) struct Beside {
    free: Arc<Free>,
}

impl Beside {
    fn at(memory: &Memory) -> At {
        At { address: memory.start.cast(), queue: std::ptr::null_mut() }
    }
}

impl Lane for Beside {
    type Memory = Memory;
    type Mark = ();

    fn enter(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        Memory::new(bytes, &self.free)
    }

    fn reading<R>(&self, memory: &Memory, act: impl FnOnce(At) -> R) -> Result<R> {
        Ok(act(Beside::at(memory)))
    }

    fn writing<R>(&self, memory: &Memory, act: impl FnOnce(At) -> R) -> Result<R> {
        let result = act(Beside::at(memory));
        memory.check();
        Ok(result)
    }

    fn mark(&self) -> Result<()> {
        Ok(())
    }

    fn is_done(&self, (): &()) -> Result<bool> {
        Ok(true)
    }
}

fn check(arg: &Arg<'_, Memory>) {
    match arg {
        Arg::Read(memory, _) | Arg::Write(memory, _) => memory.check(),
        Arg::Table(args) => args.iter().for_each(check),
        _ => {}
    }
}

/// An argument as a kernel finds it in memory, with the tables behind it.
fn bits(arg: &Arg<'_, Memory>, tables: &mut Vec<Vec<u64>>) -> u64 {
    match *arg {
        Arg::Read(memory, start) | Arg::Write(memory, start) => memory.at(start) as u64,
        Arg::Null => 0,
        Arg::Int(x) => u64::from(x as u32),
        Arg::Long(x) => x as u64,
        Arg::Float(x) => u64::from(x.to_bits()),
        Arg::Double(x) => x.to_bits(),
        Arg::Table(args) => {
            let table: Vec<u64> = args.iter().map(|arg| bits(arg, tables)).collect();
            let address = table.as_ptr() as u64;
            tables.push(table);
            address
        }
    }
}

/// How far apart rows and columns of a matrix lie.
fn steps(x: &Operand<'_, Memory>) -> (usize, usize) {
    if x.transposed { (1, x.place.pitch) } else { (x.place.pitch, 1) }
}

fn element(place: &Place<'_, Memory>, at: usize) -> *mut u8 {
    let start = place.start + at * place.element.bytes();
    assert!(
        start + place.element.bytes() <= place.memory.len,
        "a matrix ends outside of its memory"
    );
    place.memory.at(start)
}

fn get(place: &Place<'_, Memory>, at: usize) -> f64 {
    let element = element(place, at);
    // SAFETY: the element lies inside of its memory, on a boundary of its size.
    unsafe {
        match place.element {
            Element::F32 => f64::from(element.cast::<f32>().read()),
            Element::Bf16 => f32::from_bits(u32::from(element.cast::<u16>().read()) << 16).into(),
        }
    }
}

fn put(place: &Place<'_, Memory>, at: usize, value: f64) {
    let element = element(place, at);
    // SAFETY: as in `get`; products are written by one thread at a time.
    unsafe {
        match place.element {
            Element::F32 => element.cast::<f32>().write(value as f32),
            Element::Bf16 => element.cast::<u16>().write(half::bf16::from_f64(value).to_bits()),
        }
    }
}
