package study

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Main is a study's program: it conducts the study of that name with the command line's
// arguments, until that is done or the program is told to end. It returns the program's
// exit code: 1 if that failed, which it says in a line.
func Main(name string, conduct func(ctx context.Context, args []string, screen io.Writer) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := conduct(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s study: %v\n", name, err)
		return 1
	}
	return 0
}
