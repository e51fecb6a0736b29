//! Tests of bf16 products against f64 sums of the rounded operands.

use half::bf16;
use rayon::ThreadPoolBuilder;

use crate::kernels::products::matmul::matmul;
use crate::kernels::products::matrix::Matrix;
use crate::kernels::products::operands::{Bf16Products, Operands};

/// Runs a test in each way that this processor can multiply.
fn in_each_way(test: impl Fn(Operands)) {
    Bf16Products::ALL.into_iter().filter_map(Bf16Products::operands).for_each(test);
}

/// The memory layout of an operand: as it is or transposed, with a gap after each row.
#[derive(Clone, Copy, Debug)]
struct Lies {
    transposed: bool,
    gap: usize,
}

/// A `rows x columns` operand, whose element (i, j) is `value(i, j)` in any layout.
struct Operand {
    data: Vec<f32>,
    rows: usize,
    columns: usize,
    lies: Lies,
}

impl Operand {
    fn new(rows: usize, columns: usize, lies: Lies, value: impl Fn(usize, usize) -> f32) -> Self {
        let (high, wide) = if lies.transposed { (columns, rows) } else { (rows, columns) };
        let mut data = vec![f32::NAN; high * (wide + lies.gap)];
        for (i, row) in data.chunks_exact_mut(wide + lies.gap).enumerate() {
            for (j, x) in row[..wide].iter_mut().enumerate() {
                *x = if lies.transposed { value(j, i) } else { value(i, j) };
            }
        }
        Self { data, rows, columns, lies }
    }

    fn matrix(&self) -> Matrix<'_> {
        let Self { data, rows, columns, lies } = self;
        if lies.transposed {
            Matrix::new(data, *columns, *rows, rows + lies.gap).t()
        } else {
            Matrix::new(data, *rows, *columns, columns + lies.gap)
        }
    }
}

/// Returns a number between -1 and 1 that needs all bits of f32.
fn some(seed: usize, i: usize, j: usize) -> f32 {
    let x = (seed * 31 + i * 1009 + j).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn rounded(x: f32) -> f64 {
    bf16::from_f32(x).to_f64()
}

/// Returns a matrix with a gap of 3 after each row, to which the product is written or added.
fn product(
    operands: Operands,
    begin: Option<f32>,
    scale: f32,
    a: &Operand,
    b: &Operand,
) -> Vec<f32> {
    let mut into = vec![begin.unwrap_or(f32::NAN); a.rows * (b.columns + 3)];
    let row_step = b.columns + 3;
    // SAFETY: `into` is as large as the product.
    unsafe {
        let (a, b) = (a.matrix(), b.matrix());
        let at = into.as_mut_ptr();
        matmul(operands, at, row_step, begin.is_some(), scale, a, b);
    }
    into
}

/// Compares all elements, and checks that gaps are unchanged.
fn check([rows, depth, columns]: [usize; 3], lies: [Lies; 2], add: bool) {
    let (seed, scale) = (rows * 41 + depth, if add { 0.5 } else { -1.5 });
    let a = Operand::new(rows, depth, lies[0], |i, j| some(seed, i, j));
    let b = Operand::new(depth, columns, lies[1], |i, j| some(seed + 1, i, j));
    let begin = add.then_some(0.25);
    let all = Operand::new(rows, depth, ALL[0], |i, j| rounded(some(seed, i, j)) as f32).data;
    let turned =
        Operand::new(depth, columns, ALL[1], |i, j| rounded(some(seed + 1, i, j)) as f32).data;
    let expected = |i: usize, j: usize| {
        let pairs = all[i * depth..][..depth].iter().zip(&turned[j * depth..]);
        let terms = pairs.map(|(x, y)| f64::from(*x) * f64::from(*y));
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    };
    let expected: Vec<_> =
        (0..rows * columns).map(|nth| expected(nth / columns, nth % columns)).collect();
    in_each_way(|operands| {
        let got = product(operands, begin, scale, &a, &b);
        for (i, row) in got.chunks_exact(columns + 3).enumerate() {
            for (j, got) in row.iter().enumerate() {
                let case = || format!("{rows}x{depth}x{columns}, {lies:?}, {add}: ({i}, {j})");
                if j >= columns {
                    assert_eq!(got.to_bits(), begin.unwrap_or(f32::NAN).to_bits(), "{}", case());
                    continue;
                }
                let (sum, size) = expected[i * columns + j];
                let expected = f64::from(scale) * sum + f64::from(begin.unwrap_or(0.0));
                let error = (f64::from(*got) - expected).abs();
                assert!(error <= 1e-6 * (size + 1.0), "{}: {got} for {expected}", case());
            }
        }
    });
}

const ALL: [Lies; 4] = [
    Lies { transposed: false, gap: 0 },
    Lies { transposed: true, gap: 0 },
    Lies { transposed: false, gap: 5 },
    Lies { transposed: true, gap: 2 },
];

#[test]
fn small_products_of_every_size() {
    for rows in 1..=40 {
        for columns in 1..=40 {
            let depth = 1 + (rows * 7 + columns * 3) % 40;
            let nth = rows + 3 * columns;
            check([rows, depth, columns], [ALL[nth % 4], ALL[nth / 4 % 4]], nth % 3 > 0);
        }
    }
    for depth in 1..=70 {
        for (nth, lies) in ALL.into_iter().enumerate() {
            check([9, depth, 35], [lies, ALL[(nth + depth) % 4]], depth % 2 > 0);
        }
    }
}

#[test]
fn products_of_several_blocks() {
    for (nth, shape) in
        [[300, 1100, 70], [33, 513, 2100], [130, 77, 129], [1, 1025, 33]].into_iter().enumerate()
    {
        for lies in ALL {
            check(shape, [lies, ALL[nth % 4]], nth % 2 > 0);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    in_each_way(|operands| {
        for [rows, depth, columns] in [[300, 700, 260], [5, 600, 2500], [700, 70, 40]] {
            let a = Operand::new(rows, depth, ALL[0], |i, j| some(1, i, j));
            let b = Operand::new(depth, columns, ALL[1], |i, j| some(2, i, j));
            let with = |threads| {
                let pool = ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
                let got = pool.install(|| product(operands, Some(0.5), 1.0, &a, &b));
                got.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone = with(1);
            for threads in [2, 3, 5, 8] {
                assert!(with(threads) == alone, "{threads} threads");
            }
        }
    });
}

/// Rounded to nearest, ties to even, as by the crate `half`; only denormals are zero instead.
#[test]
fn numbers_are_rounded_to_the_nearest() {
    in_each_way(|operands| {
        let one = Operand::new(1, 1, ALL[0], |_, _| 1.0);
        let mut numbers =
            vec![f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, 1e-39, -1e-39];
        numbers.extend((0..4000).map(|i| f32::from_bits(0x3f80_7ff0 + i * 8)));
        numbers.extend((0..4000).map(|i| f32::from_bits(i * 0x10_4321)).filter(|x| !x.is_nan()));
        let all = Operand::new(1, numbers.len(), ALL[0], |_, j| numbers[j]);
        let got = product(operands, None, 1.0, &one, &all);
        for (x, got) in numbers.iter().zip(got) {
            let expected = if x.is_subnormal() { 0.0 } else { bf16::from_f32(*x).to_f32() };
            assert_eq!(got, expected, "{x:e}");
        }
    });
}

#[test]
fn what_is_not_finite_stays_so() {
    in_each_way(|operands| {
        let payload = f32::from_bits(0x7f80_0001); // its upper half by itself would be an infinity
        for bad in [f32::NAN, payload, f32::INFINITY, f32::NEG_INFINITY] {
            for depth in [1, 2, 5, 33] {
                for lies in ALL {
                    let at = depth - 1;
                    let value = |i, j| if (i, j) == (3, at) { bad } else { 1.0 };
                    let a = Operand::new(20, depth, lies, value);
                    let b = Operand::new(depth, 21, lies, |_, _| 2.0);
                    let got = product(operands, None, 1.0, &a, &b);
                    for (i, row) in got.chunks_exact(24).enumerate() {
                        for got in &row[..21] {
                            let same = if i == 3 && bad.is_nan() {
                                got.is_nan()
                            } else if i == 3 {
                                *got == bad
                            } else {
                                *got == 2.0 * depth as f32
                            };
                            assert!(same, "{bad} in {depth}: {got} in row {i}");
                        }
                    }
                }
            }
        }
    });
}
