//! The interface of a GPU to the layers: memory, the project's kernels, matrix products.
//!
//! The layers know nothing else about it: only the module `cuda` uses a vendor's libraries.

use std::ffi::c_void;
use std::ops::Range;

use chimera_core::device::{Clock, Result};

use super::{Element, Format};

/// Returns the text of all kernels of a format, including those for tensor cores if supported.
pub fn source(format: Format, has_tensor_cores: bool) -> String {
    let (defined, products) = match format {
        Format::F32 => ("", F32_PRODUCTS),
        Format::Tf32 => ("#define TF32\n", F32_PRODUCTS),
        Format::Bf16 => ("#define BF16\n", BF16_PRODUCTS),
    };
    let tiled: &[&str] = if has_tensor_cores { &[products, TILED] } else { &[] };
    [&[defined, SOURCE], tiled].concat().concat()
}

/// Returns the names of the kernels in a text.
pub fn kernels(source: &str) -> impl Iterator<Item = &str> {
    let lines = source.lines().filter_map(|line| line.strip_prefix("GLOBAL "));
    lines.filter_map(|line| line.split('(').next())
}

const SOURCE: &str = concat!(
    include_str!("../kernels/prelude.cu"),
    include_str!("../kernels/pointwise.cu"),
    include_str!("../kernels/sums.cu"),
    include_str!("../kernels/norm.cu"),
    include_str!("../kernels/embedding.cu"),
    include_str!("../kernels/attention.cu"),
    include_str!("../kernels/cross_entropy.cu"),
    include_str!("../kernels/optimizer.cu"),
);

/// Tensor-core primitives, by format.
const F32_PRODUCTS: &str = include_str!("../kernels/tensor_cores_f32.cu");
const BF16_PRODUCTS: &str = include_str!("../kernels/tensor_cores_bf16.cu");

/// Kernels that use the tensor cores.
const TILED: &str = concat!(
    include_str!("../kernels/tensor_cores.cu"),
    include_str!("../kernels/tiled_attention.cu"),
);

/// A place to run kernels in order: on CUDA one stream of one device.
///
/// Calls return before the work is done; only [`read`](Driver::read) and
/// [`read_all`](Driver::read_all) wait. Other drivers of the same kind may use the same memory:
/// each driver orders its own work after theirs.
pub trait Driver: Clone + Send + Sync + 'static {
    /// An allocation, freed when dropped, after the work that uses it.
    type Memory: Send + Sync + 'static;
    /// A queue beside this one.
    type Lane: Lane<Memory = Self::Memory>;

    /// Returns the device's name for messages.
    fn name(&self) -> String;

    /// Returns the number format of its kernels and products.
    fn format(&self) -> Format;

    /// Returns the most bytes of dynamic shared memory per block of a kernel. `None` if there is no
    /// kernel of this name: a chip whose tensor cores lack a format has no kernels for them.
    fn most_shared(&self, kernel: &str) -> Option<usize>;

    /// Allocates uninitialised memory, aligned to at least 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Sets every byte.
    fn fill(&self, memory: &Self::Memory, byte: u8) -> Result<()>;

    /// Copies `bytes` from the host to the start of `memory`.
    fn write(&self, memory: &Self::Memory, bytes: &[u8]) -> Result<()>;

    /// Copies to the host, from byte `start` on, and waits for it.
    fn read(&self, memory: &Self::Memory, start: usize, into: &mut [u8]) -> Result<()>;

    /// Calls [`read`](Driver::read) for several pieces, with a single wait if possible.
    fn read_all(&self, pieces: &mut [Download<'_, Self::Memory>]) -> Result<()> {
        pieces.iter_mut().try_for_each(|piece| self.read(piece.memory, piece.start, piece.into))
    }

    /// Runs a kernel of [`source`].
    fn launch(&self, launch: &Launch<'_, Self::Memory>) -> Result<()>;

    /// Multiplies two matrices.
    fn multiply(&self, product: &Product<'_, Self::Memory>) -> Result<()>;

    /// Marks `memory` as ready from here on for drivers of other ranks.
    fn record_ready(&self, memory: &Self::Memory) -> Result<()>;

    /// Makes work from here on wait until `memory` is [ready](Driver::record_ready).
    fn wait_ready(&self, memory: &Self::Memory) -> Result<()>;

    /// Copies these bytes of `memory` here from another device; otherwise uses `memory` itself.
    fn peer_copy(&self, memory: &Self::Memory, bytes: Range<usize>)
    -> Result<Option<Self::Memory>>;

    /// Opens a queue of the same device, whose work runs beside this one's.
    fn beside(&self) -> Result<Self>;

    /// Makes later work wait for all of `other`'s. One is the other's [`beside`](Driver::beside).
    fn follow(&self, other: &Self) -> Result<()>;

    /// Returns the clock of this driver's work, if there is one.
    fn clock(&self) -> Result<Option<Box<dyn Clock>>>;

    /// Returns a queue of the same device, for a library that moves memory itself.
    fn lane(&self) -> Result<Self::Lane>;
}

/// A queue for the work of a library such as NCCL, in order with the work of drivers on the same
/// memory.
pub trait Lane: Send + Sync + 'static {
    /// Memory of the driver.
    type Memory;
    /// A mark after the work so far.
    type Mark: Send + 'static;

    /// Makes the device current in the calling thread, as libraries expect.
    fn enter(&self) -> Result<()>;

    /// Allocates memory that this queue writes first.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Calls `act` with the address of `memory` and this queue, to add work that reads the memory.
    fn reading<R>(&self, memory: &Self::Memory, act: impl FnOnce(At) -> R) -> Result<R>;

    /// Like [`reading`](Lane::reading), for work that writes `memory`. After it the memory is ready
    /// for others.
    fn writing<R>(&self, memory: &Self::Memory, act: impl FnOnce(At) -> R) -> Result<R>;

    /// Marks the work so far.
    fn mark(&self) -> Result<Self::Mark>;

    /// Returns true if the work before a mark is done.
    fn is_done(&self, mark: &Self::Mark) -> Result<bool>;
}

/// The memory and queue that a library uses.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The first byte of the memory.
    pub address: *mut c_void,
    /// The queue: a `cudaStream_t`.
    pub queue: *mut c_void,
}

/// A copy of memory to the host.
#[derive(Debug)]
pub struct Download<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// First byte to copy, within the memory.
    pub start: usize,
    /// The destination.
    pub into: &'a mut [u8],
}

/// One run of a kernel.
#[derive(Debug)]
pub struct Launch<'a, M> {
    /// Name of the kernel in [`source`].
    pub kernel: &'static str,
    /// Blocks across and down.
    pub grid: [usize; 2],
    /// Threads of a block, a multiple of 32.
    pub block: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// The arguments, in order.
    pub args: &'a [Arg<'a, M>],
}

/// An argument of a kernel.
#[derive(Debug)]
pub enum Arg<'a, M> {
    /// Memory that is read, from this byte on.
    Read(&'a M, usize),
    /// Memory that is written, or changed, from this byte on.
    Write(&'a M, usize),
    /// No memory.
    Null,
    /// An `int`.
    Int(i32),
    /// A `long long`.
    Long(i64),
    /// A `float`.
    Float(f32),
    /// A `double`.
    Double(f64),
    /// A pointer to an array in the device's memory, of these arguments at 8 bytes each.
    Table(&'a [Arg<'a, M>]),
}

/// `into = a b + plus + bias`, all row-major: `a` is `m` by `k` and `b` is `k` by `n`, after they
/// are transposed as requested. Sums have at least f32 precision, and are rounded once.
#[derive(Debug)]
pub struct Product<'a, M> {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// The left operand.
    pub a: Operand<'a, M>,
    /// The right operand.
    pub b: Operand<'a, M>,
    /// The result.
    pub into: MatrixRef<'a, M>,
    /// The matrix that is added to the product.
    pub plus: Plus<'a, M>,
    /// A number per column, of the element type of `into`, which is added to each row.
    pub bias: Option<MatrixRef<'a, M>>,
}

impl<'a, M> Product<'a, M> {
    /// Returns the added matrix, which is the result itself if no other is given.
    pub fn added(&self) -> &MatrixRef<'a, M> {
        match &self.plus {
            Plus::Nothing | Plus::Itself => &self.into,
            Plus::Other(matrix) => matrix,
        }
    }
}

/// The matrix that is added to a product.
#[derive(Debug)]
pub enum Plus<'a, M> {
    /// Nothing.
    Nothing,
    /// The previous contents of the result.
    Itself,
    /// A matrix of the result's shape and element type.
    Other(MatrixRef<'a, M>),
}

/// A matrix to multiply.
#[derive(Debug)]
pub struct Operand<'a, M> {
    /// Start of the operand in memory.
    pub place: MatrixRef<'a, M>,
    /// Whether to use its transpose.
    pub transposed: bool,
}

/// The start of a matrix in memory, and its element type.
#[derive(Debug)]
pub struct MatrixRef<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// First byte of the matrix, within the memory.
    pub start: usize,
    /// The element type.
    pub element: Element,
    /// Elements from one row in memory to the next.
    pub pitch: usize,
}

impl<M> Clone for Arg<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Arg<'_, M> {}
