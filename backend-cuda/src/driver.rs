//! What a GPU must do for the layers: keep memory, run the project's kernels, multiply matrices.
//!
//! The layers know nothing else of it: whose driver and compiler serve it is the module `cuda`'s alone.

use std::ffi::c_void;
use std::ops::Range;

use chimera_core::device::{Clock, Result};

use super::{Element, Format};

/// The text of all kernels of a format, with those for tensor cores if the chip's take it.
pub fn source(format: Format, has_tensor_cores: bool) -> String {
    let (defined, products) = match format {
        Format::F32 => ("", F32_PRODUCTS),
        Format::Tf32 => ("#define TF32\n", F32_PRODUCTS),
        Format::Bf16 => ("#define BF16\n", BF16_PRODUCTS),
    };
    let tiled: &[&str] = if has_tensor_cores { &[products, TILED] } else { &[] };
    [&[defined, SOURCE], tiled].concat().concat()
}

/// Names of the kernels in a text.
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

/// What tensor cores take, by format.
const F32_PRODUCTS: &str = include_str!("../kernels/tensor_cores_f32.cu");
const BF16_PRODUCTS: &str = include_str!("../kernels/tensor_cores_bf16.cu");

/// What they are used for.
const TILED: &str = concat!(
    include_str!("../kernels/tensor_cores.cu"),
    include_str!("../kernels/tiled_attention.cu"),
);

/// A place to run kernels in order: on CUDA one stream of one device.
///
/// Calls return before the work is done; only [`read`](Driver::read) and [`read_all`](Driver::read_all) wait. Work on other drivers of the
/// same kind may use the same memory: each driver orders its own work behind theirs.
pub trait Driver: Clone + Send + Sync + 'static {
    /// An allocation, given back when dropped, after the work that uses it.
    type Memory: Send + Sync + 'static;
    /// A queue beside this one.
    type Lane: Lane<Memory = Self::Memory>;

    /// The device, in words.
    fn name(&self) -> String;

    /// What its kernels and products take.
    fn format(&self) -> Format;

    /// Bytes of dynamic shared memory that a block of a kernel can have, if there is a kernel of this name: a chip whose
    /// tensor cores lack a format has no kernels for them.
    fn most_shared(&self, kernel: &str) -> Option<usize>;

    /// Memory with nothing in particular in it, on a boundary of at least 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Sets every byte.
    fn fill(&self, memory: &Self::Memory, byte: u8) -> Result<()>;

    /// Copies `bytes` from the host to the start of `memory`.
    fn write(&self, memory: &Self::Memory, bytes: &[u8]) -> Result<()>;

    /// Copies to the host, from byte `start` on; waits for it.
    fn read(&self, memory: &Self::Memory, start: usize, into: &mut [u8]) -> Result<()>;

    /// [`read`](Driver::read)s several pieces; where it can, it waits for all of them at once.
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

    /// Copies these bytes of `memory` to this device if they lie on another one, else takes `memory` for its own.
    fn peer_copy(&self, memory: &Self::Memory, bytes: Range<usize>)
    -> Result<Option<Self::Memory>>;

    /// A queue of the same device, whose work runs beside that of this one.
    fn beside(&self) -> Result<Self>;

    /// Makes work from here on wait for all that `other` was asked for so far, which is this one's [`beside`](Driver::beside) or
    /// the one that this is beside.
    fn follow(&self, other: &Self) -> Result<()>;

    /// The clock of this driver's work, where there is one.
    fn clock(&self) -> Result<Option<Box<dyn Clock>>>;

    /// A queue of the same device, for a library that moves memory by itself.
    fn lane(&self) -> Result<Self::Lane>;
}

/// A queue into which a library such as NCCL puts its own work, in order with the work of drivers on the same
/// memory.
pub trait Lane: Send + Sync + 'static {
    /// Memory of the driver.
    type Memory;
    /// A mark behind the work so far.
    type Mark: Send + 'static;

    /// Makes the device the current one of the calling thread, as libraries want it.
    fn enter(&self) -> Result<()>;

    /// Memory to be written by this queue first.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Lets `act` add work that reads `memory`.
    fn reading<R>(&self, memory: &Self::Memory, act: impl FnOnce(At) -> R) -> Result<R>;

    /// Lets `act` add work that writes `memory`, which is ready for others behind that work.
    fn writing<R>(&self, memory: &Self::Memory, act: impl FnOnce(At) -> R) -> Result<R>;

    /// Marks the work so far.
    fn mark(&self) -> Result<Self::Mark>;

    /// Whether the work before a mark is done.
    fn is_done(&self, mark: &Self::Mark) -> Result<bool>;
}

/// Where a library works.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The first byte of the memory.
    pub address: *mut c_void,
    /// The queue: a `cudaStream_t`.
    pub queue: *mut c_void,
}

/// Memory to be copied to the host.
#[derive(Debug)]
pub struct Download<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// The first byte of it.
    pub start: usize,
    /// Where it goes.
    pub into: &'a mut [u8],
}

/// One run of a kernel.
#[derive(Debug)]
pub struct Launch<'a, M> {
    /// Its name in [`source`].
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
    /// `int`
    Int(i32),
    /// `long long`
    Long(i64),
    /// `float`
    Float(f32),
    /// `double`
    Double(f64),
    /// A pointer to an array in the device's memory: these arguments, 8 bytes each.
    Table(&'a [Arg<'a, M>]),
}

/// `into = a b + plus + bias`, all row-major: `a` is `m` by `k` and `b` is `k` by `n` once transposed as
/// asked. Sums are f32 at least, and rounded once.
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
    /// What is added to the product.
    pub plus: Plus<'a, M>,
    /// A number for each column, of the elements of `into`, that is added to each row.
    pub bias: Option<MatrixRef<'a, M>>,
}

impl<'a, M> Product<'a, M> {
    /// The matrix that is added: the result itself, unless it is another one.
    pub fn added(&self) -> &MatrixRef<'a, M> {
        match &self.plus {
            Plus::Nothing | Plus::Itself => &self.into,
            Plus::Other(matrix) => matrix,
        }
    }
}

/// What is added to a product.
#[derive(Debug)]
pub enum Plus<'a, M> {
    /// Nothing.
    Nothing,
    /// What the place of the result holds.
    Itself,
    /// A matrix of the extents and the elements of the result.
    Other(MatrixRef<'a, M>),
}

/// A matrix to multiply.
#[derive(Debug)]
pub struct Operand<'a, M> {
    /// Where it begins.
    pub place: MatrixRef<'a, M>,
    /// Whether its transpose is meant.
    pub transposed: bool,
}

/// Where a matrix begins and what it is made of.
#[derive(Debug)]
pub struct MatrixRef<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// The byte in it.
    pub start: usize,
    /// The elements.
    pub element: Element,
    /// Elements from one row, as it lies in memory, to the next.
    pub pitch: usize,
}

impl<M> Clone for Arg<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Arg<'_, M> {}
