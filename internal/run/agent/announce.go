//go:build linux

package agent

import (
	"encoding/json"
	"os"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
)

// Announcement tells a program that has started a job how to join it.
type Announcement struct {
	Protocol    int    `json:"protocol"` // [Protocol]; set by Announcer
	Version     string `json:"version"`  // of Perdure
	Coordinator string `json:"coordinator"`
	SecretFile  string `json:"secret_file"`
	Keys        string `json:"keys"` // directory of the job's keys; "": none
}

// Announcer returns a function that writes an announcement to an inherited file descriptor, as one line of JSON, and
// closes it. Child processes that start after Announcer has returned do not inherit the descriptor.
func Announcer(fd int) (announce func(Announcement) error, err error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, perdure.Usagef("file descriptor %d is not open: %w", fd, err)
	}
	to := os.NewFile(uintptr(fd), "announcement")
	return func(a Announcement) error {
		a.Protocol = Protocol
		err := json.NewEncoder(to).Encode(&a)
		if closed := to.Close(); err == nil {
			err = closed
		}
		return err
	}, nil
}
