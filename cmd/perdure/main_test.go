package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/proc/supervisor"
)

// asCommand makes this test binary act as the perdure command. Processes that the tests start, and their children,
// inherit the variable, so every role runs this binary. Its value is the directory of the images that stand in for the
// embedded ones.
const asCommand = "PERDURE_TEST_AS_COMMAND"

// asVersion sets the version of Perdure of a process that the tests start, and of its children.
const asVersion = "PERDURE_TEST_AS_VERSION"

func TestMain(m *testing.M) {
	name, embedded := os.Getenv(asProgram), os.Getenv(asCommand)
	if name != "" || embedded != "" {
		dataset.ReplaceEmbedded(embedded)
		version = cmp.Or(os.Getenv(asVersion), version)
		if err := errors.Join(supervisor.DieWithParent(), hangLoop()); err != nil {
			fmt.Fprintln(os.Stderr, "perdure:", err)
			os.Exit(exitError)
		}
		if name != "" {
			os.Exit(runProgram(name))
		}
		os.Exit(run(os.Args[1:]))
	}
	flag.Parse()
	os.Exit(withData(m.Run))
}

// pictures is a directory with a small data set, a part of the embedded one. Every process of every job loads the data
// set, which takes long under the race detector.
var pictures string

func withData(run func() int) int {
	dir, err := os.MkdirTemp("", "perdure-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		pictures = dir
		err = errors.Join(writePictures(dir, 20), os.Setenv(asCommand, dir), os.Setenv("GORACE", "atexit_sleep_ms=0"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitError
	}
	return run()
}

// writePictures writes every oneIn-th embedded image as idx files.
func writePictures(dir string, oneIn int) error {
	all, err := dataset.Embedded()
	if err != nil {
		return err
	}
	for name, split := range map[string]*dataset.Split{"train": &all.Train, "t10k": &all.Test} {
		n := split.N / oneIn
		images := binary.BigEndian.AppendUint32(nil, 0x803)
		for _, v := range []int{n, 1, split.Dim} {
			images = binary.BigEndian.AppendUint32(images, uint32(v))
		}
		for i := range n {
			images = append(images, split.Image(i)...)
		}
		labels := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 0x801), uint32(n))
		labels = append(labels, split.Labels[:n]...)
		err := errors.Join(
			os.WriteFile(filepath.Join(dir, name+"-images-idx3-ubyte"), images, 0o666),
			os.WriteFile(filepath.Join(dir, name+"-labels-idx1-ubyte"), labels, 0o666))
		if err != nil {
			return err
		}
	}
	return nil
}
