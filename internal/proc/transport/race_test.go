//go:build race

package transport

// raceDetector makes sync.Pool forget what it is given, at random.
const raceDetector = true
