//! What suits a device: sizes of workgroups and tiles.

use std::fmt;

use wgpu::{DeviceType, Features};

/// The constants of the kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Invocations of a workgroup that works on elements.
    pub(crate) group: u32,
    /// Invocations of a workgroup that works on rows.
    pub(crate) row_group: u32,
    /// How many of them share a row.
    pub(crate) lanes: u32,
    /// The matrix product.
    pub(crate) product: Product,
    /// Invocations of a workgroup of attention, one query or key each.
    pub(crate) queries: u32,
    /// Bytes of workgroup memory for tiles of attention; 0 to read them from the tensors.
    pub(crate) tile_bytes: u32,
    /// Kernels of one submission, at most.
    pub(crate) batch: usize,
}

/// How matrices are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Product {
    /// A block of the result per invocation, in registers; no workgroup memory.
    Registers,
    /// The same with operands that the invocations of a subgroup, 8 of them, hand each other.
    Subgroups,
    /// Tiles of both operands in workgroup memory.
    Tiles,
}

/// What kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A processor that plays a GPU: it has no fast workgroup memory, and barriers cost it most.
    Software,
    /// The same without subgroups.
    PlainSoftware,
    /// A GPU.
    Gpu,
}

impl Target {
    /// What a device is, by its kind.
    pub(crate) fn of(device: DeviceType) -> Target {
        if device == DeviceType::Cpu { Target::Software } else { Target::Gpu }
    }
}

impl Tuning {
    pub(crate) fn of(target: Target, adapter: &wgpu::Adapter) -> Tuning {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let sizes = [info.subgroup_min_size, info.subgroup_max_size];
        let has_subgroups = adapter.features().contains(Features::SUBGROUP) && sizes == [8, 8];
        match target {
            Target::Software => Tuning {
                group: 64,
                row_group: 8,
                lanes: 1,
                product: if has_subgroups { Product::Subgroups } else { Product::Registers },
                queries: 8,
                tile_bytes: 0,
                batch: 256,
            },
            Target::PlainSoftware => {
                Tuning { product: Product::Registers, ..Tuning::of(Target::Software, adapter) }
            }
            Target::Gpu => Tuning {
                group: 256,
                row_group: 256,
                lanes: 64,
                product: Product::Tiles,
                queries: 64,
                tile_bytes: limits.max_compute_workgroup_storage_size.min(16 << 10),
                batch: 64,
            },
        }
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = match self.product {
            Product::Registers => "matrix products in registers",
            Product::Subgroups => "matrix products in registers of subgroups",
            Product::Tiles => "matrix products in tiles of workgroup memory",
        };
        write!(f, "{product}, {} invocation(s) per row", self.lanes)
    }
}
