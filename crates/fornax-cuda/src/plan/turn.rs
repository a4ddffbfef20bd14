//! Heads that turn and are kept: on their way to attention, or by launches of their own.
//!
//! Must not know of products that end with it, which are in `turned`.

use fornax_backend::BackendError;

use super::{Action, Plan};
use crate::kernels::Module;
use crate::launch::Launch;
use crate::operation::{Operation, Turn};

/// Warps of a block that turns heads: `WARPS` of `kernels/turn.cu`.
const WARPS: usize = 8;
/// Blocks of a multiprocessor, twice as many as run at once.
const BLOCKS: usize = 8;

impl Plan<'_> {
    /// Turns heads on the way to their attention where that can, else by a launch of its own; says how many operations
    /// that were.
    pub(super) fn turn(
        &mut self,
        turn: &Turn,
        behind: &mut [Operation],
    ) -> Result<usize, BackendError> {
        if let [Operation::Attend(attend), rest @ ..] = behind
            && self.turns_on_the_way(turn, attend)
        {
            let attend = attend.turning(turn);
            self.attend(attend, rest)?;
            return Ok(2);
        }
        if turn.is_fast() {
            let turn = self.narrowed(turn, behind);
            self.turn_by("turn_rows", &turn)?;
            return Ok(1);
        }
        let floats = turn.rotary as usize + WARPS * turn.dim as usize;
        let kernel = self
            .shop
            .kernels
            .kernel(Module::Rows, "qk_norm_rope_store")?;
        let launch = Launch::new(kernel, [turn.n as usize, 1, 1], 32 * WARPS);
        let launch = launch.shared(4 * floats).structure(turn);
        self.actions.push(Action::Launch(launch));
        Ok(1)
    }

    /// Turns heads of a size that there is a kernel for, from rows in single precision or brain floats.
    pub(super) fn turn_by(&mut self, name: &'static str, turn: &Turn) -> Result<(), BackendError> {
        let (head, kv) = (turn.dim as usize, turn.kind as usize);
        let kernel = self.shop.kernels.kernel(Module::Turn { head, kv }, name)?;
        let most = BLOCKS * self.shop.device.multiprocessors() as usize;
        let launch = Launch::new(kernel, [most.min(turn.n as usize), 1, 1], 32 * WARPS);
        self.actions.push(Action::Launch(launch.structure(turn)));
        Ok(())
    }
}
