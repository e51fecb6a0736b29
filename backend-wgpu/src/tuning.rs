//! Sizes of workgroups and tiles that suit a device.

use std::fmt;

use wgpu::{DeviceType, Features};

/// The constants of the kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Invocations per workgroup of elementwise kernels.
    pub(crate) group: u32,
    /// Invocations per workgroup of kernels that work on rows.
    pub(crate) row_group: u32,
    /// Number of invocations that share a row.
    pub(crate) lanes: u32,
    /// The matrix products.
    pub(crate) products: Products,
    /// Invocations per workgroup of attention, one query or key each.
    pub(crate) queries: u32,
    /// Bytes of workgroup memory for tiles of attention; 0 to read them from the tensors.
    pub(crate) tile_bytes: u32,
    /// Whether attention's loops over features are unrolled, for devices with enough registers.
    pub(crate) unroll: bool,
    /// The most layers per submission.
    pub(crate) batch: usize,
}

/// A kernel for matrix products. All give the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Product {
    /// A block of 4 x 8 of the result per invocation, in registers; no workgroup memory.
    Registers,
    /// A block of 32 x 4, with operands that the 8 invocations of a subgroup pass each other.
    Subgroups,
    /// Tiles of 64 x 64 in workgroup memory, 4 x 4 per invocation.
    Tiles,
    /// Tiles of 128 x 128, 8 x 8 per invocation.
    WideTiles,
}

impl Product {
    /// All products by name.
    pub const ALL: [(&'static str, Product); 4] = [
        ("registers", Product::Registers),
        ("subgroups", Product::Subgroups),
        ("tiles", Product::Tiles),
        ("wide tiles", Product::WideTiles),
    ];

    pub(crate) fn runs_on(self, adapter: &wgpu::Adapter) -> bool {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let has_tiles = |side: u32| {
            limits.max_compute_invocations_per_workgroup >= 256
                && limits.max_compute_workgroup_storage_size >= 2 * 16 * 4 * (side + 4)
        };
        match self {
            Product::Registers => true,
            Product::Subgroups => {
                adapter.features().contains(Features::SUBGROUP)
                    && [info.subgroup_min_size, info.subgroup_max_size] == [8, 8]
            }
            Product::Tiles => has_tiles(64),
            Product::WideTiles => has_tiles(128),
        }
    }

    /// Returns the product that is probably the fastest for the adapter's kind.
    fn likely(target: Target, adapter: &wgpu::Adapter) -> Product {
        let best = match target {
            Target::Software => Product::Subgroups,
            Target::Gpu => Product::Tiles,
        };
        if best.runs_on(adapter) { best } else { Product::Registers }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Product::ALL.iter().find(|(_, product)| product == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// Size classes of matrix products, each with its own fastest kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    /// Too few elements for large tiles to fill a GPU.
    Small,
    /// Enough elements for large tiles.
    Large,
    /// Fewer rows or columns than a tile has.
    Skinny,
}

impl Size {
    pub(crate) const ALL: [Size; 3] = [Size::Small, Size::Large, Size::Skinny];

    /// Returns the class of a product of `m` rows and `n` columns.
    fn of(m: usize, n: usize) -> Size {
        match m.saturating_mul(n) {
            _ if m.min(n) <= 64 => Size::Skinny,
            elements if elements < 1 << 20 => Size::Small,
            _ => Size::Large,
        }
    }

    /// Returns the rows, the length of sums and the columns of the product that is measured for it.
    pub(crate) fn extents(self) -> [usize; 3] {
        match self {
            Size::Small => [512; 3],
            Size::Large => [2048; 3],
            Size::Skinny => [32, 2048, 2048],
        }
    }
}

/// The matrix product of each size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Products(pub(crate) [Product; 3]);

impl Products {
    /// Returns the product for a result of `m` rows and `n` columns.
    pub(crate) fn of(self, m: usize, n: usize) -> Product {
        self.0[Size::of(m, n) as usize]
    }
}

impl From<Product> for Products {
    fn from(product: Product) -> Products {
        Products([product; 3])
    }
}

/// Shows the only name, or each name with the size at which it was measured.
impl fmt::Display for Products {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [small, large, skinny] = self.0;
        if small == large && small == skinny {
            return small.fmt(f);
        }
        write!(f, "{small} (512), {large} (2048), {skinny} (32 x 2048)")
    }
}

/// The kind of device that kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A processor that emulates a GPU. It has no fast workgroup memory, and barriers cost it most.
    Software,
    /// A GPU.
    Gpu,
}

impl Target {
    /// Returns the target for a kind of device.
    pub(crate) fn of(device: DeviceType) -> Target {
        if device == DeviceType::Cpu { Target::Software } else { Target::Gpu }
    }
}

impl Tuning {
    pub(crate) fn of(
        target: Target,
        products: Option<Products>,
        adapter: &wgpu::Adapter,
    ) -> Tuning {
        let products = products.unwrap_or_else(|| Product::likely(target, adapter).into());
        Tuning::sized(target, products, adapter.limits().max_compute_workgroup_storage_size)
    }

    /// Returns the tuning for a device with `storage` bytes of workgroup memory.
    pub(crate) fn sized(target: Target, products: Products, storage: u32) -> Tuning {
        match target {
            Target::Software => Tuning {
                group: 64,
                row_group: 8,
                lanes: 1,
                products,
                queries: 8,
                tile_bytes: 0,
                unroll: false,
                batch: 256,
            },
            Target::Gpu => Tuning {
                group: 256,
                row_group: 256,
                lanes: 64,
                products,
                queries: 64,
                tile_bytes: storage.min(16 << 10),
                unroll: true,
                batch: 64,
            },
        }
    }
}
