package checkpoints

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// A claim says whose a store is that is not in its run's folder, from the moment at which the run
// begins: names of files tell those of one job apart, and not those of two. It is a sealed document
// (see disk.Seal) with a JSON body.
const (
	claimName    = checkpoint.ClaimFile
	claimKind    = "JOB"
	claimVersion = 1
)

// ErrTaken is wrapped when a store has checkpoints already, or a job that will make some.
var ErrTaken = errors.New("taken")

type claim struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`
	Workload string `json:"workload"`
}

// Claim takes an empty store for a job. It writes, and reads again: so who must not do either is
// told when a run begins, and not when it saves first.
func Claim(in store.Store, job *perdure.JobSpec) error {
	err := take(in, job)
	switch {
	case errors.Is(err, ErrTaken):
		return fmt.Errorf("%w: --store: %w; name a place that no other job has, another prefix, say", perdure.ErrUsage,
			err)
	case err != nil:
		return fmt.Errorf("--store: %w", err)
	}
	return nil
}

// Share is Claim for one of several coordinators of a job. own reports whether it is this one that has taken the store.
func Share(in store.Store, job *perdure.JobSpec) (own bool, err error) {
	if err = Claim(in, job); err == nil {
		return true, nil
	}
	mine, errMine := claimOf(job)
	got, errGot := store.Read(in, claimName)
	if errMine == nil && errGot == nil && string(got) == string(mine) {
		return false, nil
	}
	return false, err
}

// claimOf is what is written for a job.
func claimOf(job *perdure.JobSpec) ([]byte, error) {
	body, err := json.Marshal(claim{claimVersion, job.ID, job.Workload})
	return disk.Seal(claimKind, claimVersion, append(body, '\n')), err
}

func take(in store.Store, job *perdure.JobSpec) error {
	if err := in.Prepare(); err != nil {
		return err
	}
	if err := free(in); err != nil {
		return err
	}
	mine, err := claimOf(job)
	if err != nil {
		return err
	}
	if err := in.PutNew(claimName, mine); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	got, err := store.Read(in, claimName)
	if err == nil && string(got) != string(mine) {
		err = taken(in, got)
	}
	return err
}

// free reports whether nobody has claimed a store, and nobody has saved anything there.
func free(in store.Store) error {
	switch got, err := store.Read(in, claimName); {
	case err == nil:
		return taken(in, got)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	found, err := checkpoint.Look(in)
	if err != nil {
		return err
	}
	name := ""
	switch {
	case len(found.Kept) > 0:
		name = found.Kept[0].File
	case len(found.Loose) > 0:
		name = found.Loose[0].File
	default:
		return nil
	}
	return fmt.Errorf("%s is %w: it has checkpoints already, %s, say", in, ErrTaken, name)
}

// taken says whose a store is.
func taken(in store.Store, sealed []byte) error {
	body, err := disk.Unseal(claimKind, claimVersion, sealed)
	var c claim
	if err == nil {
		err = json.Unmarshal(body, &c)
	}
	if err != nil {
		return fmt.Errorf("%s is %w: its %s cannot be read: %w", in, ErrTaken, claimName, err)
	}
	return fmt.Errorf("%s is %w: it belongs to job %s (%s)", in, ErrTaken, c.ID, c.Workload)
}

// claimDefects reads the claim of a store, and returns its defects.
func claimDefects(in store.Store) []checkpoint.Defect {
	sealed, err := store.Read(in, claimName)
	if err == nil {
		_, err = disk.Unseal(claimKind, claimVersion, sealed)
	}
	if err != nil {
		return []checkpoint.Defect{{File: claimName, Err: err}}
	}
	return nil
}

// Unclaim gives a store back to which nothing has come yet but what its run was to go on from.
func Unclaim(in store.Store) error {
	found, err := checkpoint.Look(in)
	if err != nil {
		return err
	}
	if err := checkpoint.Remove(in, found.Without(0, false)); err != nil {
		return err
	}
	return in.Delete(claimName)
}
