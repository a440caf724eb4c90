package main

import (
	"time"

	"github.com/perdure/perdure/internal/run/report"
	"github.com/perdure/perdure/internal/run/runs"
)

type reportCmd struct {
	Folders []string `arg:"" name:"run" help:"@report_folders"`
	Out     string   `short:"o" help:"@report_out (default ${default})." default:"report.html" type:"path"`
	Force   bool     `help:"Replace an existing file that is not a report."`
}

func (c *reportCmd) Run() error {
	all, err := runs.Find(c.Folders)
	if err != nil {
		return err
	}
	page, err := report.New(all, report.Options{Version: version, Made: time.Now()})
	if err != nil {
		return err
	}
	for _, problem := range page.Problems {
		warn(problem)
	}
	return page.Write(stdout, c.Out, c.Force)
}
