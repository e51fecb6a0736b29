//! The effects that only some programs have: of moves, versions of weights, and slices.

use super::{Effects, Rules, Token, TokenKind, push_units};
use crate::ir::few::Few;
use crate::ir::op::{Kind, Op, Span};

impl Rules {
    /// The effects of a move of the activations `saved`.
    pub(super) fn add_move(&self, op: &Op, saved: Token, e: &mut Effects) {
        for unit in op.span.units() {
            let one = |kind| Token { kind, span: Span::one(unit), ..saved };
            let left = match self.keeper(op.pipe, op.stage, unit) {
                Some(_) => TokenKind::Back,
                None => TokenKind::Away,
            };
            let (eaten, made) = match op.kind {
                Kind::Offload => (TokenKind::Saved, TokenKind::Away),
                Kind::Keep => (TokenKind::Away, TokenKind::Guest),
                Kind::Return => (TokenKind::Guest, TokenKind::Back),
                _ => (left, TokenKind::Reloaded),
            };
            e.eats.push(one(eaten));
            e.makes.push(one(made));
        }
    }

    /// Adds the saved activations of each unit, in the form in which a backward finds them.
    pub(super) fn push_saved(&self, eats: &mut Few<Token>, saved: Token) {
        for unit in saved.span.units() {
            let kind = if self.is_offloaded(saved.pipe, saved.stage, unit) {
                TokenKind::Reloaded
            } else {
                TokenKind::Saved
            };
            eats.push(Token { kind, span: Span::one(unit), ..saved });
        }
    }

    /// A backward reads the version of the weights that its forward read, as the recomputation
    /// between them does.
    pub(super) fn add_versions(&self, kind: Kind, version: Token, e: &mut Effects) {
        let recomputed = Token { kind: TokenKind::RecomputedVersion, ..version };
        match kind {
            Kind::Forward => push_units(&mut e.makes, version),
            Kind::Recompute => {
                push_units(&mut e.eats, version);
                push_units(&mut e.makes, recomputed);
            }
            Kind::Backward | Kind::BackwardInput => {
                if self.is_recomputed(version.pipe, version.stage) {
                    push_units(&mut e.eats, recomputed);
                } else {
                    push_units(&mut e.eats, version);
                }
            }
            Kind::BackwardWeight => {}
            Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return | Kind::Work(_) => {}
        }
    }

    /// Adds the tokens between slices. A slice reads the values that earlier ones left, and its
    /// backward comes before theirs. Recomputation reads what its forward kept.
    pub(super) fn add_past(&self, op: &Op, e: &mut Effects) {
        let Op { kind, pipe, stage, span } = *op;
        let token = |kind, unit| Token { kind, pipe, stage, to: stage, span: Span::one(unit) };
        for unit in span.units() {
            let slice = unit % self.n_slices;
            let (is_first, is_last) = (slice == 0, slice + 1 == self.n_slices);
            match kind {
                Kind::Forward => {
                    if !is_first {
                        e.eats.push(token(TokenKind::Past, unit));
                    }
                    if !is_last {
                        e.makes.push(token(TokenKind::Past, unit.saturating_add(1)));
                    }
                }
                Kind::Backward | Kind::BackwardInput => {
                    if !is_last {
                        e.eats.push(token(TokenKind::PastGradient, unit));
                    }
                    if !is_first {
                        e.makes.push(token(TokenKind::PastGradient, unit - 1));
                    }
                }
                Kind::BackwardWeight | Kind::Recompute => {}
                Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return | Kind::Work(_) => {}
            }
        }
    }
}
