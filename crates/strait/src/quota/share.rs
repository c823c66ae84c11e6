//! The share of a user's limit that remains for one process of the user.

/// Returns whether this process may hold `amount` more of a resource for a peer process, beside the amount `mine`
/// already held for the peer. `held` is the amount already held for all `processes` peer processes of the user (the
/// peer included), and `limit` is the user's limit.
///
/// The sum of `mine` and `amount` must be at most 1/(`processes` + 1) of the amount that the other processes leave of
/// `limit`. If each new process takes all that it may, the first process gets a half, the second a third of the other
/// half, and the *k*th `limit / (k (k + 1))`. Then `limit / (k + 1)` is left for further processes.
///
/// Whatever the number of processes, each may hold [`LITTLE`] as long as half of `limit` is free. Otherwise one process
/// could not introduce this process to some two hundred others. The *k*th process still gets `limit / (k (k + 1))`,
/// because from the second process on that is at most its share of the free half.
pub(super) fn may_have(mine: u64, amount: u64, held: u64, limit: u64, processes: u64) -> bool {
    let wanted = u128::from(mine) + u128::from(amount);
    let left = u128::from(limit.saturating_sub(held)) + u128::from(mine);
    let then = held.checked_add(amount);
    let is_little = wanted <= u128::from(limit / LITTLE) && then.is_some_and(|held| held <= limit / 2);
    // A share of what is left is within the limit, unless the limit was lowered meanwhile.
    is_little || (wanted * (u128::from(processes) + 1) <= left && then.is_some_and(|held| held <= limit))
}

/// The part of a user's limit that each process may hold while half of the limit is free: one in 64.
const LITTLE: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the greatest `amount` for which [`may_have`] returns `true`. The arguments are those of [`may_have`],
    /// without `amount`.
    fn most(mine: u64, held: u64, limit: u64, processes: u64) -> u64 {
        let (mut low, mut high) = (0, limit + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if may_have(mine, middle, held, limit, processes) { low = middle } else { high = middle }
        }
        low
    }

    #[test]
    fn one_gets_half_and_the_next_a_third_of_the_rest() {
        assert_eq!(most(0, 0, 1200, 1), 600);
        assert_eq!(most(0, 600, 1200, 2), 200);
        assert_eq!(most(0, 800, 1200, 3), 100);
        // A limit that was lowered leaves nothing.
        assert!(!may_have(600, 1, 600, 300, 1));
    }

    /// Shows that a process may introduce this process to hundreds of others, each of which has an account and holds a
    /// few things.
    #[test]
    fn a_little_is_free_for_each_of_many() {
        assert_eq!(most(0, 1000, 64_000, 500), 1000);
        assert_eq!(most(900, 31_950, 64_000, 500), 50);
        assert_eq!(most(0, 32_001, 64_000, 500), 63);
    }

    proptest! {
        #[test]
        fn nobody_can_lock_out_the_next(limit in 10_000u64..1 << 40, processes in 1u64..60) {
            let mut held = 0;
            for k in 1..=processes {
                let share = most(0, held, limit, k);
                prop_assert!(share >= limit / (k * (k + 1)) - k, "the {k}th gets {share}");
                held += share;
            }
            prop_assert!(held <= limit - limit / (processes + 1) + 1);
        }

        #[test]
        fn the_limit_holds_in_whatever_order(wants in prop::collection::vec((0usize..5, 0u64..500), 1..200)) {
            let (limit, mut mine) = (1000u64, [0u64; 5]);
            for (who, amount) in wants {
                let held = mine.iter().sum();
                if may_have(mine[who], amount, held, limit, 5) {
                    mine[who] += amount;
                }
                prop_assert!(mine.iter().sum::<u64>() <= limit);
                // Five processes that were there from the start cannot have more than five parts in six together.
                prop_assert!(mine.iter().all(|mine| *mine <= limit / 6));
            }
        }
    }
}
