//! What ranks send each other, as words of four bytes.
//!
//! MPI's own tags are too few for [`Tag`]s (32,767 are promised), so a message says itself what it is: its
//! words are the elements of a tensor, then a footer of fixed length. Behind the elements, a footer costs
//! no copy: the sender's memory has room for it, and the receiver cuts it off.

use chimera_core::comm::{Host, Tag, What};
use chimera_core::effects::{Token, TokenKind};
use chimera_core::fault::Fault;
use chimera_core::ids::{BucketId, PipeId, StageId};
use chimera_core::op::Span;

/// A message between two ranks.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Letter {
    /// A tensor that the engine sends.
    Tensor(Tag, Host),
    /// A rank's part of the exchange of this number.
    Bytes(u64, Vec<u8>),
    /// The sender wants to know where the receiver is; the question has this number.
    Ask(u64),
    /// The answer: a [`Position`](chimera_core::comm::Position) as bits.
    Where(u64, u64),
    /// The sender gives up.
    Abort(Fault),
    /// The sender sends nothing more.
    Bye,
}

/// Begins a footer, and changes with its form.
const MARK: u32 = 0x4348_4d02;
/// Words of a footer before the extents.
const HEAD: usize = 8;
/// Words of a footer.
pub(crate) const FOOTER: usize = Host::ROOM;
/// The most extents of a tensor.
const MAX_DIMS: usize = FOOTER - HEAD - 1;

/// By their codes.
const TOKENS: [TokenKind; 6] = [
    TokenKind::Activation,
    TokenKind::Gradient,
    TokenKind::Saved,
    TokenKind::Kept,
    TokenKind::Deferred,
    TokenKind::Version,
];
const PART: u32 = 16;
const SUM: u32 = 17;
const EVALUATED: u32 = 18;
const WEIGHT: u32 = 19;
const UPDATED: u32 = 20;
const ASIDE: u32 = 21;
const BYTES: u32 = 32;
const ABORT: u32 = 33;
const BYE: u32 = 34;
const ASK: u32 = 35;
const WHERE: u32 = 36;

/// What a footer says, beside extents.
struct Head {
    code: u32,
    /// A step, or the number of an exchange.
    number: u64,
    x: u32,
    y: u32,
    /// A span, a sample, or a position.
    z: u64,
}

impl Letter {
    /// As words; an error says why it cannot be sent.
    pub(crate) fn into_words(self) -> Result<Vec<f32>, String> {
        let of_bytes = |code, number, bytes: &[u8]| {
            sealed(Host::of_bytes(bytes).data, &[], &Head { code, number, x: 0, y: 0, z: 0 })
        };
        match self {
            Letter::Tensor(tag, Host { shape, data }) => sealed(data, &shape, &head(tag)),
            Letter::Bytes(number, bytes) => of_bytes(BYTES, number, &bytes),
            Letter::Abort(fault) => {
                let text = serde_json::to_vec(&fault).map_err(|e| e.to_string())?;
                of_bytes(ABORT, 0, &text)
            }
            Letter::Bye => of_bytes(BYE, 0, &[]),
            Letter::Ask(number) => of_bytes(ASK, number, &[]),
            Letter::Where(number, bits) => sealed(
                Vec::with_capacity(FOOTER),
                &[],
                &Head { code: WHERE, number, x: 0, y: 0, z: bits },
            ),
        }
    }

    /// What words say; an error says what is wrong with them.
    pub(crate) fn from_words(mut data: Vec<f32>) -> Result<Letter, String> {
        let n = data.len().checked_sub(FOOTER).ok_or("it is shorter than a footer")?;
        let mut footer = [0; FOOTER];
        for (word, value) in footer.iter_mut().zip(&data[n..]) {
            *word = value.to_bits();
        }
        data.truncate(n);
        if footer[0] != MARK {
            return Err("it is not of this version of chimera".into());
        }
        let wide = |at: usize| u64::from(footer[at]) | u64::from(footer[at + 1]) << 32;
        let head =
            Head { code: footer[1], number: wide(2), x: footer[4], y: footer[5], z: wide(6) };
        match head.code {
            BYTES => Ok(Letter::Bytes(head.number, bytes(data)?)),
            ABORT => {
                let fault = serde_json::from_slice(&bytes(data)?);
                fault.map(Letter::Abort).map_err(|e| format!("its cause cannot be read: {e}"))
            }
            BYE => Ok(Letter::Bye),
            ASK => Ok(Letter::Ask(head.number)),
            WHERE => Ok(Letter::Where(head.number, head.z)),
            _ => {
                let dims = footer[HEAD + 1..].get(..footer[HEAD] as usize);
                let shape: Vec<_> =
                    dims.ok_or("it has too many extents")?.iter().map(|d| *d as usize).collect();
                let n_elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
                if n_elements != Some(n) {
                    return Err(format!("its {n} elements are not of shape {shape:?}"));
                }
                Ok(Letter::Tensor(tag(&head)?, Host { shape, data }))
            }
        }
    }
}

fn head(tag: Tag) -> Head {
    let of = |code, x, y, z| Head { code, number: tag.step, x, y, z };
    match tag.what {
        What::Token(Token { kind, pipe, stage, span }) => {
            let x = u32::from(pipe.0) << 16 | u32::from(stage.0);
            of(code(kind), x, span.start, u64::from(span.len))
        }
        What::Part { bucket, slice } => of(PART, bucket.0, slice, 0),
        What::Sum { bucket, slice } => of(SUM, bucket.0, slice, 0),
        What::Updated { bucket, tensor } => of(UPDATED, bucket.0, tensor, 0),
        What::Evaluated { sample, stage } => of(EVALUATED, stage.0.into(), 0, sample),
        What::Weight { stage, tensor } => of(WEIGHT, stage.0.into(), tensor, 0),
        What::Aside { line } => of(ASIDE, line.into(), 0, 0),
    }
}

/// Its index among [`TOKENS`].
fn code(kind: TokenKind) -> u32 {
    match kind {
        TokenKind::Activation => 0,
        TokenKind::Gradient => 1,
        TokenKind::Saved => 2,
        TokenKind::Kept => 3,
        TokenKind::Deferred => 4,
        TokenKind::Version => 5,
    }
}

fn tag(head: &Head) -> Result<Tag, String> {
    let Head { code, number: step, x, y, z } = *head;
    let what = match code {
        PART => What::Part { bucket: BucketId(x), slice: y },
        SUM => What::Sum { bucket: BucketId(x), slice: y },
        UPDATED => What::Updated { bucket: BucketId(x), tensor: y },
        EVALUATED => What::Evaluated { sample: z, stage: StageId(narrow("stage", x)?) },
        WEIGHT => What::Weight { stage: StageId(narrow("stage", x)?), tensor: y },
        ASIDE => What::Aside { line: narrow("line", x)? },
        _ => {
            let kind = TOKENS.get(code as usize).ok_or_else(|| format!("it is of kind {code}"))?;
            let (pipe, stage) = (PipeId((x >> 16) as u16), StageId(x as u16)); // a half each
            let span = Span { start: y, len: narrow("length", z)? };
            What::Token(Token { kind: *kind, pipe, stage, span })
        }
    };
    Ok(Tag { step, what })
}

/// A number in fewer bits than the footer has for it.
fn narrow<W, N>(what: &str, wide: W) -> Result<N, String>
where
    W: Copy + std::fmt::Display,
    N: TryFrom<W>,
{
    N::try_from(wide).map_err(|_| format!("it is of {what} {wide}"))
}

/// Elements with their footer behind them.
fn sealed(mut data: Vec<f32>, shape: &[usize], head: &Head) -> Result<Vec<f32>, String> {
    let mut footer = [0; FOOTER];
    let halves = |wide: u64| [wide as u32, (wide >> 32) as u32];
    let ([n, n_high], [z, z_high]) = (halves(head.number), halves(head.z));
    footer[..HEAD].copy_from_slice(&[MARK, head.code, n, n_high, head.x, head.y, z, z_high]);
    let fits = shape.len() <= MAX_DIMS && shape.iter().all(|d| u32::try_from(*d).is_ok());
    if !fits {
        return Err(format!("a tensor of shape {shape:?} has too many or too large extents"));
    }
    footer[HEAD] = shape.len() as u32;
    for (word, extent) in footer[HEAD + 1..].iter_mut().zip(shape) {
        *word = *extent as u32;
    }
    data.extend(footer.map(f32::from_bits));
    Ok(data)
}

fn bytes(data: Vec<f32>) -> Result<Vec<u8>, String> {
    let bytes = Host { shape: vec![data.len()], data }.into_bytes();
    bytes.ok_or_else(|| "it has another length than it says".into())
}

#[cfg(test)]
mod tests {
    use chimera_core::fault::Class;
    use chimera_core::ids::Rank;

    use super::*;

    fn token(kind: TokenKind) -> What {
        let (pipe, stage) = (PipeId(3), StageId(0xfffe));
        What::Token(Token { kind, pipe, stage, span: Span { start: u32::MAX, len: 2 } })
    }

    #[test]
    fn letters_survive_the_wire() {
        let (bucket, stage) = (BucketId(70_000), StageId(7));
        let others = [
            What::Part { bucket, slice: 9 },
            What::Sum { bucket, slice: u32::MAX },
            What::Updated { bucket, tensor: 3 },
            What::Evaluated { sample: u64::MAX, stage },
            What::Weight { stage, tensor: 5 },
            What::Aside { line: 3 },
        ];
        let mut letters = vec![Letter::Bye, Letter::Ask(3), Letter::Where(4, u64::MAX - 1)];
        for what in TOKENS.map(token).into_iter().chain(others) {
            let data = vec![1.5, -0.0, f32::INFINITY, f32::MIN_POSITIVE, 0.0, 7.0];
            let host = Host { shape: vec![3, 2, 1], data };
            letters.push(Letter::Tensor(Tag { step: 1 << 40, what }, host));
        }
        letters.push(Letter::Tensor(
            Tag { step: 0, what: others[0] },
            Host { shape: vec![], data: vec![4.0] },
        ));
        letters.extend((0..9).map(|n| Letter::Bytes(n, vec![250 + n as u8 % 6; n as usize])));
        letters.push(Letter::Abort(Fault::new(Class::Io, Rank(4), "é")));
        for letter in letters {
            let words = letter.clone().into_words().expect("sendable");
            assert_eq!(Letter::from_words(words), Ok(letter));
        }
    }

    /// Bits are kept, also of what is not a number.
    #[test]
    fn no_bit_is_lost() {
        let bits = [0x7fa0_0001u32, 0xffc1_2345, 1];
        let host = Host { shape: vec![3], data: bits.map(f32::from_bits).to_vec() };
        let tag = Tag { step: 0, what: What::Part { bucket: BucketId(0), slice: 0 } };
        let words = Letter::Tensor(tag, host).into_words().expect("sendable");
        let Ok(Letter::Tensor(_, host)) = Letter::from_words(words) else { panic!("a tensor") };
        assert_eq!(host.data.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), bits);
    }

    #[test]
    fn what_is_no_letter_is_refused() {
        let whole = Letter::Bytes(1, vec![1; 5]).into_words().expect("sendable");
        let refused = |change: &dyn Fn(&mut Vec<f32>)| {
            let mut words = whole.clone();
            change(&mut words);
            Letter::from_words(words).expect_err("refused")
        };
        let n = whole.len();
        let set =
            |at: usize, word: u32| move |words: &mut Vec<f32>| words[at] = f32::from_bits(word);
        assert_eq!(refused(&|w| w.truncate(3)), "it is shorter than a footer");
        assert_eq!(refused(&set(n - FOOTER, MARK + 1)), "it is not of this version of chimera");
        assert_eq!(refused(&|w| *w = w.split_off(1)), "it has another length than it says");
        assert_eq!(refused(&set(n - FOOTER + 1, PART)), "its 4 elements are not of shape []");
        let mut tensor = Letter::Tensor(
            Tag { step: 0, what: What::Part { bucket: BucketId(0), slice: 0 } },
            Host { shape: vec![1], data: vec![1.0] },
        )
        .into_words()
        .expect("sendable");
        tensor[2] = f32::from_bits(99);
        assert_eq!(Letter::from_words(tensor), Err("it is of kind 99".into()));
        for (what, word, value, refusal) in [
            (What::Aside { line: 3 }, 4, 256, "it is of line 256"),
            (What::Weight { stage: StageId(7), tensor: 0 }, 4, 1 << 16, "it is of stage 65536"),
            (What::Evaluated { sample: 0, stage: StageId(7) }, 4, 1 << 16, "it is of stage 65536"),
            (token(TokenKind::Saved), 6, 1 << 16, "it is of length 65536"),
            (token(TokenKind::Saved), 7, 1, "it is of length 4294967298"),
        ] {
            let host = Host { shape: vec![1], data: vec![1.0] };
            let mut words =
                Letter::Tensor(Tag { step: 0, what }, host).into_words().expect("sendable");
            words[1 + word] = f32::from_bits(value);
            assert_eq!(Letter::from_words(words), Err(refusal.into()));
        }
        let shape = vec![1; MAX_DIMS + 1];
        let many = Letter::Tensor(
            Tag { step: 0, what: What::Part { bucket: BucketId(0), slice: 0 } },
            Host { shape, data: vec![1.0] },
        );
        assert!(many.into_words().is_err());
    }
}
