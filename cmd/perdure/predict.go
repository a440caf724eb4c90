package main

import (
	"context"
	"os"

	"github.com/perdure/perdure/internal/run/modelfile"
)

type predictCmd struct {
	Model string   `arg:"" help:"@predict_model" type:"path"`
	User  []string `help:"mf: a user whose best items are wanted; may be repeated." placeholder:"NAME" sep:"none"`
	Best  *int     `help:"mf: how many items of each user (default 10)." placeholder:"N"`
	Known string   `help:"@predict_known" placeholder:"FILE" type:"path"`
	Pairs string   `help:"mf: a file of lines user,item, each of which is predicted." placeholder:"FILE" type:"path"`
	Data  string   `help:"@predict_data" placeholder:"PATH"`
	JSON  bool     `name:"json" help:"Print JSON, for programs."`
}

func (c *predictCmd) Run(ctx context.Context) error {
	return modelfile.Predict(ctx, stdout, os.Stderr, modelfile.Prediction{
		Model: c.Model, Data: home(c.Data), Users: c.User, Best: c.Best, Known: c.Known, Pairs: c.Pairs, JSON: c.JSON,
	})
}
