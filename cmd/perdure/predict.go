package main

import (
	"context"
	"os"

	"github.com/perdure/perdure/internal/run/modelfile"
)

type predictCmd struct{ modelfile.Prediction }

func (c *predictCmd) Run(ctx context.Context) error {
	c.Data = home(c.Data)
	return modelfile.Predict(ctx, stdout, os.Stderr, c.Prediction)
}
