//go:build !amd64

package table

// vectors is false: this architecture has only the plain loops.
var vectors bool

func add(w, g []float32)                               { addPlain(w, g) }
func sgd(w, g []float32, rate float32)                 { sgdPlain(w, g, rate) }
func momentum(w, v, g []float32, mu, rate float32)     { momentumPlain(w, v, g, mu, rate) }
func nesterov(w, v, g []float32, mu, rate float32)     { nesterovPlain(w, v, g, mu, rate) }
func adagrad(w, a, g []float32, rate, epsilon float32) { adagradPlain(w, a, g, rate, epsilon) }
func adam(w, m, v, g []float32, k *adamFactors)        { adamPlain(w, m, v, g, k) }
func ftrl(w, z, n, g []float32, k *ftrlFactors)        { ftrlPlain(w, z, n, g, k) }
func clip(dst, g []float32, bound, scale float32)      { clipPlain(dst, g, bound, scale) }
func squares(g []float32, bound float32) float64       { return squaresPlain(g, bound) }
func nonFinite(values []float32) int                   { return nonFinitePlain(values) }
func gap(a, b []float32) float64                       { return gapPlain(a, b) }

func gaps(dst []float64, a, b []float32, width int)            { gapsPlain(dst, a, b, width) }
func roots(dst []uint32, squares []float64, by float64) uint32 { return rootsPlain(dst, squares, by) }
func apart(dst []uint32, a, b []float32, by float32) uint32    { return apartPlain(dst, a, b, by) }
func atLeast(dst []uint64, keys []uint32, least uint32)        { atLeastPlain(dst, keys, least) }
