//! Embedding. In the backward pass, the host sorts the rows by token, so that one block adds the
//! rows of a token in order: the same bits every time, without atomics.

use chimera_core::device::Result;
use chimera_core::layers::Embed;

use super::{Arg, BLOCK, Driver, Gpu, Tensor, int, long};

impl<D: Driver> Embed for Gpu<D> {
    fn embedding(
        &self,
        ids: &[u32],
        context: usize,
        tokens: &Tensor<D::Memory>,
        positions: &Tensor<D::Memory>,
    ) -> Result<Tensor<D::Memory>> {
        // Tables are f32, except if rows of an activation are picked.
        let tokens = self.wide(tokens)?;
        let hidden = tokens.width();
        self.check_ids("embedding", ids, tokens.n_rows())?;
        let y = self.activation_of(&[ids.len(), hidden])?;
        let on_device = self.indices(ids)?;
        let args = [
            Arg::Read(&on_device, 0),
            tokens.read(),
            positions.read(),
            y.write(),
            int(context),
            int(hidden),
        ];
        self.run("embedding", [ids.len(), 1], BLOCK, &args)?;
        Ok(y)
    }

    fn embedding_dw(
        &self,
        ids: &[u32],
        context: usize,
        dy: &Tensor<D::Memory>,
        d_tokens: &mut Tensor<D::Memory>,
        d_positions: &mut Tensor<D::Memory>,
    ) -> Result<()> {
        let (dy, hidden) = (self.cast(dy)?, dy.width());
        self.check_ids("embedding_dw", ids, d_tokens.n_rows())?;
        let (order, starts) = by_token(ids);
        let n_tokens = starts.len() - 1;
        let [ids_on_device, order, starts] =
            [self.indices(ids)?, self.indices(&order)?, self.indices(&starts)?];
        let args = [
            Arg::Read(&ids_on_device, 0),
            Arg::Read(&order, 0),
            Arg::Read(&starts, 0),
            dy.read(),
            d_tokens.write(),
            int(hidden),
        ];
        self.run("embedding_tokens", [n_tokens, 1], BLOCK, &args)?;
        let args = [dy.read(), d_positions.write(), long(ids.len()), int(context), int(hidden)];
        self.run("embedding_positions", [context.min(ids.len()), 1], BLOCK, &args)
    }
}

impl<D: Driver> Gpu<D> {
    /// Refuses ids that are not below `n`: a kernel would read or change another tensor's memory.
    pub(super) fn check_ids(&self, op: &'static str, ids: &[u32], n: usize) -> Result<()> {
        match ids.iter().find(|id| **id as usize >= n) {
            Some(id) => {
                Err(self.failed(op, format!("id {id} is not below {n}, the rows of the table")))
            }
            None => Ok(()),
        }
    }
}

/// Returns the rows sorted by token, then by number, and the boundaries between tokens.
fn by_token(ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|row| ids[*row as usize]); // stable
    let mut starts = vec![0];
    for at in 1..order.len() {
        if ids[order[at] as usize] != ids[order[at - 1] as usize] {
            starts.push(at as u32);
        }
    }
    if !ids.is_empty() {
        starts.push(ids.len() as u32);
    }
    (order, starts)
}

#[cfg(test)]
mod tests {
    use super::by_token;

    #[test]
    fn rows_of_a_token_lie_together_in_order() {
        assert_eq!(by_token(&[7, 2, 7, 0, 2]), (vec![3, 1, 4, 0, 2], vec![0, 1, 3, 5]));
        assert_eq!(by_token(&[4]), (vec![0], vec![0, 1]));
        assert_eq!(by_token(&[]), (vec![], vec![0]));
    }
}
