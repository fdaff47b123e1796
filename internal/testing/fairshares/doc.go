// Package fairshares is the rule by which tenants share one limit, with a search of every short history of up to four of
// them, and a simulation.
//
// The limit is a bucket, and decides every call: whatever the shares do, nothing exceeds its rule. The shares say who may
// take from which part of it. What each tenant has had, per weight, is a mark on one scale; the line is the mark of the
// tenant that has had most.
//
//   - A call that leaves its tenant behind the line or at it needs room for its permits, and nothing else.
//   - A call that moves the line leaves in the bucket what is kept: for the others, a part of the burst by weight (Kept),
//     and for those who come new another part (Spare).
//   - A tenant that is not counted yet begins at the line. Its first call may take what is spare.
//
// So the tenants that have had most wait while there is anybody who has had less and asks; and what nobody asks for, they
// take. How far a tenant can be behind the line is bounded: by its part of Kept, or by two of the largest calls. Who is
// counted changes in epochs: those who were served in this epoch or in the one before it.
//
// A denial changes nothing. So the answer of a call whose reply is lost needs no move of its own: the permits are taken.
package fairshares
