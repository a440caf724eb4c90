// Package itercost measures what a failure costs a training in iterations, and
// bounds it.
//
// The words and letters are those of Qiao, Aragam, Zhang and Xing, Fault
// Tolerance in Iterative-Convergent Machine Learning (ICML 2019, arXiv
// 1810.07354). A training is x_{k+1} = f(x_k), and x* is where it goes. A
// failure makes a perturbation δ of the parameters: a row that comes back from
// an old checkpoint is off by what it had learned since. The disturbed run y
// meets the perturbations δ_ℓ; its undisturbed twin x begins as it does and
// meets none.
//
//	the paper's           here                   what it is
//	κ(y, ε)               Kappa                  the clock from which on y's error stays at or below ε
//	ι(δ, ε)               Iota                   the iteration cost: κ(y, ε) − κ(x, ε)
//	‖δ‖                   Between, Delta.Norm    how far restored rows are from the true ones
//	E‖δ'‖² = p‖δ‖²        Delta.ExpectedSquare   if each part is lost with probability p, and only the lost come back
//	c                     Bootstrap.Rate         the factor by which each clock shrinks the error
//	Δ_T                   NewBound               Σ c^{−ℓ}‖δ_ℓ‖, over perturbations up to clock T
//	bound of κ            Bound.Kappa            ⌈log((‖x₀ − x*‖ + Δ_T)/ε) / log(1/c)⌉
//	bound of ι            Bound.NeatCost         log(1 + Δ_T/‖x₀ − x*‖) / log(1/c), under a condition
//	–                     Bound.Cost             what holds without it: the bound of κ less κ(x, ε)
//
// The iteration cost and the perturbation are the paper's framework for faults;
// the bounds are its worst case; the share p belongs to its partial recovery.
// The bound of κ was derived anew here, and the neat bound of ι was found to need
// a condition: see [Bound]. What is said about samples of costs ([Summarize],
// [Compare], [Bootstrap]) is not from the paper.
//
// A run that ends before it reaches ε is censored. It is never dropped and its
// cost is never guessed: a [Cost] says then what it is at least, and all that is
// made of such costs by rank is a [Range], whose ends are what can be true.
//
// The package does no I/O, and what is drawn at random is a function of a seed.
// Its values may be read by many goroutines at once.
package itercost
