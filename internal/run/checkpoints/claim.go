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

// A claim records which job owns a store outside of its run's directory, from the start of the run. File names are
// unique only within a job. A claim is a sealed document (see disk.Seal) with a JSON body.
const (
	claimName    = checkpoint.ClaimFile
	claimKind    = "JOB"
	claimVersion = 1
)

// ErrTaken is wrapped if a store already has checkpoints, or belongs to a job that will write some.
var ErrTaken = errors.New("taken")

type claim struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`
	Workload string `json:"workload"`
}

// Claim takes an empty store for a job. It writes and reads a file, so missing permissions are reported when a run
// starts, and not at its first checkpoint.
func Claim(in store.Store, job *perdure.JobSpec) error {
	err := writeClaim(in, job)
	switch {
	case errors.Is(err, ErrTaken):
		return perdure.Usagef("--store: %w; choose a store that no other job uses, for example another prefix", err)
	case err != nil:
		return fmt.Errorf("--store: %w", err)
	}
	return nil
}

// ClaimShared is Claim for one of several coordinators of a job. own reports whether this coordinator has taken the
// store.
func ClaimShared(in store.Store, job *perdure.JobSpec) (own bool, err error) {
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

// claimOf returns the claim of a job.
func claimOf(job *perdure.JobSpec) ([]byte, error) {
	body, err := json.Marshal(claim{claimVersion, job.ID, job.Workload})
	return disk.Seal(claimKind, claimVersion, append(body, '\n')), err
}

func writeClaim(in store.Store, job *perdure.JobSpec) error {
	if err := in.Prepare(); err != nil {
		return err
	}
	if err := checkFree(in); err != nil {
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
		err = takenError(in, got)
	}
	return err
}

// checkFree returns an error if a store is claimed or has checkpoints.
func checkFree(in store.Store) error {
	switch got, err := store.Read(in, claimName); {
	case err == nil:
		return takenError(in, got)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	found, err := checkpoint.List(in)
	if err != nil {
		return err
	}
	name := ""
	switch {
	case len(found.Checkpoints) > 0:
		name = found.Checkpoints[0].File
	case len(found.Unreferenced) > 0:
		name = found.Unreferenced[0].File
	default:
		return nil
	}
	return fmt.Errorf("%s is %w: it already has checkpoints, for example %s", in, ErrTaken, name)
}

// takenError returns an error that names the owner of a store.
func takenError(in store.Store, sealed []byte) error {
	body, err := disk.Unseal(claimKind, claimVersion, sealed)
	var c claim
	if err == nil {
		err = json.Unmarshal(body, &c)
	}
	if err != nil {
		return fmt.Errorf("%s is %w: cannot read its %s: %w", in, ErrTaken, claimName, err)
	}
	return fmt.Errorf("%s is %w: it belongs to job %s (%s)", in, ErrTaken, c.ID, c.Workload)
}

// claimDefects verifies the claim of a store and returns its defects.
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

// Unclaim releases a store that holds only the checkpoint from which its run was about to continue.
func Unclaim(in store.Store) error {
	found, err := checkpoint.List(in)
	if err != nil {
		return err
	}
	if err := checkpoint.Remove(in, found.PlanRemoval(0, false)); err != nil {
		return err
	}
	return in.Delete(claimName)
}
