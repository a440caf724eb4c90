package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestSkyPilot: the tasks of deploy/skypilot run valid commands, for a job with as many servers and slots.
func TestSkyPilot(t *testing.T) {
	const folder = "../../deploy/skypilot/"
	text, err := os.ReadFile(folder + "perdure.yaml")
	must(t, err)
	fill := strings.NewReplacer("\\\n", "", " &\n", "\n", " || exit\n", "\n", "$head", "servers-0.perdure:7000",
		"$SKYPILOT_NUM_GPUS_PER_NODE", "1", "python -m perdure launch", "perdure host", "--nproc", "--workers",
		"--preload torch,torch._dynamo,perdure.torch", "--")
	commands, servers, learners := 0, 0, 0
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var task struct {
			Name, Run string
			Nodes     int `yaml:"num_nodes"`
		}
		if err := d.Decode(&task); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(fill.Replace(task.Run)) {
			args := strings.Fields(line)
			if len(args) == 0 || args[0] != "perdure" {
				continue
			}
			commands++
			args[0] = "/usr/local/bin/perdure"
			if _, err := parseUnit(args); err != nil {
				t.Errorf("%s: %v: %v", task.Name, args, err)
			}
		}
		if strings.HasPrefix(task.Name, "learner-") {
			learners++
		}
		servers += task.Nodes
	}
	job, err := readJob(context.Background(), folder+"job.yaml")
	must(t, err)
	spec, err := job.New()
	must(t, err)
	if spec.Job.Servers != servers || spec.InitialWorkers() != learners || commands != 2+learners {
		t.Errorf("the job has %d servers and %d slots; the tasks have %d servers, %d learners and %d commands",
			spec.Job.Servers, spec.InitialWorkers(), servers, learners, commands)
	}
}
