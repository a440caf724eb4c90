package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/constants"
	"sigs.k8s.io/jobset/pkg/controllers"
	"sigs.k8s.io/jobset/pkg/features"
)

func schemaOf(apiVersion, kind string) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind)
}

// cluster is the controller of JobSet with a job, in memory. Nothing runs in it.
type cluster struct {
	*testing.T
	client.Client
	js   *jobset.JobSet
	made map[string]int // how many jobs of each name were made
}

func newCluster(t *testing.T, js *jobset.JobSet) *cluster {
	features.SetFeatureGateDuringTest(t, features.RestartJob, true)
	js = admitted(t, js)
	c := &cluster{T: t, js: js, made: map[string]int{}}
	c.Client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(js).WithStatusSubresource(js, &batchv1.Job{}).
		WithIndex(&batchv1.Job{}, constants.JobsIndexByJobSetKey, func(o client.Object) []string {
			return []string{string(metav1.GetControllerOf(o).UID)}
		}).Build()
	return c
}

// settle has the controller work until it changes nothing more, and returns the jobs by name.
func (c *cluster) settle() map[string]*batchv1.Job {
	c.Helper()
	r := controllers.NewJobSetReconciler(c.Client, scheme, events.NewFakeRecorder(100))
	for range 10 {
		if _, err := r.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(c.js)}); err != nil {
			c.Fatal(err)
		}
		for _, j := range c.jobs() {
			if j.Annotations["seen"] == "" { // a new one
				c.made[j.Name]++
				j.Annotations["seen"] = fmt.Sprint(c.made[j.Name])
				c.check(c.Update(context.Background(), j))
			}
		}
	}
	return c.jobs()
}

func (c *cluster) check(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) jobs() map[string]*batchv1.Job {
	c.Helper()
	var list batchv1.JobList
	c.check(c.List(context.Background(), &list))
	all := map[string]*batchv1.Job{}
	for i := range list.Items {
		all[list.Items[i].Name] = &list.Items[i]
	}
	return all
}

// ends has a job end, as the controller of jobs says it.
func (c *cluster) ends(name string, how batchv1.JobConditionType, reason, message string) {
	c.Helper()
	j := c.jobs()[name]
	j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{
		Type: how, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
	})
	c.check(c.Status().Update(context.Background(), j))
}

// state is what has become of the job; "": it goes on.
func (c *cluster) state() string {
	c.Helper()
	c.check(c.Get(context.Background(), client.ObjectKeyFromObject(c.js), c.js))
	return c.js.Status.TerminalState
}

// again are the names of jobs that were made more than once.
func (c *cluster) again() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(c.made)) {
		if c.made[name] > 1 {
			names = append(names, name)
		}
	}
	return names
}

// The ways in which the job of a pod fails. The messages are those of the controller of jobs.
var fails = map[string][2]string{
	"crashed": {batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit"},
	"evicted": {
		batchv1.JobReasonPodFailurePolicy,
		"Pod default/perdure-servers-1-0-x has condition DisruptionTarget matching FailJob rule at index 1",
	},
	"wrong": {
		batchv1.JobReasonPodFailurePolicy,
		"Container perdure for pod default/perdure-servers-1-0-x failed with exit code 2 matching FailJob rule at index 0",
	},
	"job failed": {
		batchv1.JobReasonPodFailurePolicy,
		"Container perdure for pod default/perdure-servers-1-0-x failed with exit code 5 matching FailJob rule at index 0",
	},
}

// TestOneAlone: a job that fails is made again, alone: all others stay. A crash counts, an eviction does not, and what
// was asked for wrongly ends all.
func TestOneAlone(t *testing.T) {
	for how, want := range map[string]struct {
		again  []string
		counts int32
		state  string
	}{
		"crashed":    {again: []string{"perdure-servers-1"}, counts: 1},
		"evicted":    {again: []string{"perdure-servers-1"}},
		"wrong":      {state: string(jobset.JobSetFailed)},
		"job failed": {state: string(jobset.JobSetFailed)},
	} {
		t.Run(how, func(t *testing.T) {
			c := newCluster(t, jobSetOf(t, made(t)))
			if all := c.settle(); len(all) != 6 {
				t.Fatalf("jobs: %v", slices.Sorted(maps.Keys(all)))
			}
			c.ends("perdure-servers-1", batchv1.JobFailed, fails[how][0], fails[how][1])
			all := c.settle()
			if state := c.state(); !slices.Equal(c.again(), want.again) || state != want.state {
				t.Errorf("made again: %v, want %v; the job is %q, want %q", c.again(), want.again, state, want.state)
			}
			if want.state == "" && len(all) != 6 {
				t.Errorf("jobs: %v", slices.Sorted(maps.Keys(all)))
			}
			counted := c.js.Status.RestartsCountTowardsMax
			for _, r := range c.js.Status.ReplicatedJobsStatus {
				for _, n := range r.JobRestartsCountTowardsMax {
					counted += n
				}
			}
			if counted != want.counts {
				t.Errorf("%d restarts count, want %d", counted, want.counts)
			}
		})
	}
}

// TestAllAgain: without its rules the same failure has every job made again, so the test above sees that.
func TestAllAgain(t *testing.T) {
	js := jobSetOf(t, made(t))
	js.Spec.FailurePolicy.Rules = nil
	c := newCluster(t, js)
	c.settle()
	c.ends("perdure-servers-1", batchv1.JobFailed, fails["crashed"][0], fails["crashed"][1])
	if c.settle(); len(c.again()) != 6 {
		t.Errorf("made again: %v, want all", c.again())
	}
}

// TestOver: the job is over when its coordinator is, whoever is still there; and not when a worker is.
func TestOver(t *testing.T) {
	c := newCluster(t, jobSetOf(t, made(t)))
	c.settle()
	c.ends("perdure-workers-0", batchv1.JobComplete, "", "")
	if c.settle(); c.state() != "" {
		t.Errorf("a worker has ended, and the job is %s", c.state())
	}
	c.ends("perdure-coordinator-0", batchv1.JobComplete, "", "")
	if c.settle(); c.state() != string(jobset.JobSetCompleted) {
		t.Errorf("the job is %q", c.state())
	}
}

// TestGivenUp: a job whose pods crash again and again ends.
func TestGivenUp(t *testing.T) {
	c := newCluster(t, jobSetOf(t, made(t, "maxRestarts=2")))
	c.settle()
	for range 3 {
		if c.state() != "" {
			t.Fatalf("it is given up too early: %v", c.made)
		}
		c.ends("perdure-servers-1", batchv1.JobFailed, fails["crashed"][0], fails["crashed"][1])
		c.settle()
	}
	if c.state() != string(jobset.JobSetFailed) {
		t.Errorf("after three crashes, of which two are allowed, the job is %q", c.state())
	}
}
