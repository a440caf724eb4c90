//go:build race

package transport

// raceDetector makes sync.Pool drop items at random.
const raceDetector = true
