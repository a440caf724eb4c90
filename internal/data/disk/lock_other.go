//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package disk

type noLock struct{}

func (noLock) CheckHeld() error { return nil }
func (noLock) Close() error     { return nil }

// lockFile does nothing: this system has no flock.
func lockFile(path, holder string) (Lock, error) { return noLock{}, nil }

// LockShared does nothing: this system has no flock.
func LockShared(path string) (Lock, error) { return noLock{}, nil }
