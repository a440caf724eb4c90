//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
)

// TestAnnouncer checks that an announcement is one line of JSON, after which the descriptor is closed, and that child
// processes do not inherit the descriptor.
func TestAnnouncer(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close() }()
	fd, err := unix.Dup(int(write.Fd())) // without FD_CLOEXEC, like an inherited one
	if err != nil || write.Close() != nil {
		t.Fatal(err)
	}
	announce, err := Announcer(fd)
	if err != nil {
		t.Fatal(err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %d of the descriptor: %v", flags, err)
	}
	want := Announcement{Version: "1", Coordinator: "h:1", SecretFile: "a b", Keys: "k"}
	if err := announce(want); err != nil {
		t.Fatal(err)
	}
	want.Protocol = Protocol
	var got Announcement
	d := json.NewDecoder(read)
	if err := d.Decode(&got); err != nil || got != want {
		t.Errorf("announced %+v: %v", got, err)
	}
	if d.More() {
		t.Error("the announcement is not the only line, or the descriptor is still open")
	}
	if _, err := Announcer(fd); !errors.Is(err, perdure.ErrUsage) {
		t.Errorf("a closed descriptor: %v", err)
	}
}
