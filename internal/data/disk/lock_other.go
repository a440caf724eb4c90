//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package disk

type noLock struct{}

func (noLock) Held() error  { return nil }
func (noLock) Close() error { return nil }

// lockFile does nothing: this system has no flock.
func lockFile(path, holder string) (Lock, error) { return noLock{}, nil }

// Share does nothing: this system has no flock.
func Share(path string) (Lock, error) { return noLock{}, nil }
