package keys

import (
	"io/fs"
	"os"
)

// rootID is the user who may read every file.
const rootID = 0

// open reports whether others than its owner can use a file. One of root's that a group may read, and nobody else, is
// taken by others than root: only root has let that group in, and it reads all files anyway. So Kubernetes hands a
// secret to a process that is not root, with a group that its pod alone has; and so it can replace it while it runs.
func open(info fs.FileInfo) bool { return openTo(info.Mode().Perm(), ownerOf(info), os.Geteuid()) }

func openTo(mode fs.FileMode, owner, user int) bool {
	if owner == rootID && user != rootID {
		return mode&0o037 != 0
	}
	return mode&0o077 != 0
}
