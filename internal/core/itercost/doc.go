// Package itercost measures and bounds the cost of failures in training, in iterations.
//
// The terms and symbols are those of Qiao, Aragam, Zhang and Xing, Fault Tolerance in Iterative-Convergent Machine
// Learning (ICML 2019, arXiv 1810.07354). Training is the iteration x_{k+1} = f(x_k), which converges to x*. A failure
// perturbs the parameters by δ: a row restored from an old checkpoint lacks all later updates. The disturbed run y has
// the perturbations δ_ℓ. Its undisturbed twin x starts at the same point and has none.
//
//	the paper's           here                   what it is
//	κ(y, ε)               Kappa                  the clock from which on y's error stays at or below ε
//	ι(δ, ε)               Iota                   the iteration cost: κ(y, ε) − κ(x, ε)
//	‖δ‖                   Perturbation           how far restored rows are from the true ones
//	c                     Rate                   the factor by which each clock shrinks the error
//	Δ_T                   NewBound               Σ c^{−ℓ}‖δ_ℓ‖, over perturbations up to clock T
//	bound of κ            Bound.Kappa            ⌈log((‖x₀ − x*‖ + Δ_T)/ε) / log(1/c)⌉
//	bound of ι            Bound.SimpleCost       log(1 + Δ_T/‖x₀ − x*‖) / log(1/c), under a condition
//	–                     Bound.Cost             what holds without it: the bound of κ less κ(x, ε)
//
// The iteration cost and the perturbation are the paper's framework for faults, and the bounds are its worst case. The
// bound of κ was derived independently here, and the simple bound of ι was found to need a condition: see [Bound]. The
// statistics of samples of costs ([Summarize], [Bootstrap]) are not from the paper.
//
// A run that ends before it reaches ε is censored. It is never dropped and its cost is never guessed: its [Cost] is a
// lower bound. The median of such costs is a [Range] of the possible values.
//
// The package does no I/O, and all random draws are a function of a seed. Its values are safe for concurrent reads.
package itercost
