package role

import "fmt"

// ExitCode is the exit code of a process.
type ExitCode int

// Validate implements kong's interface for validation.
func (c ExitCode) Validate() error {
	if c < 0 || c > 255 {
		return fmt.Errorf("invalid exit code %d; choose 0 to 255", int(c))
	}
	return nil
}
