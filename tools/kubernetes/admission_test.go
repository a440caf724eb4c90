package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/features"
	"sigs.k8s.io/jobset/pkg/webhooks"
	"sigs.k8s.io/yaml"
)

// door is what an API server asks before it stores a JobSet, in its order: what the definition of JobSet says of fields
// and their values, by the API server's own code for resources that are defined so, and JobSet's own two webhooks.
type door struct {
	fields *schema.Structural
	values validation.SchemaValidator
	rules  *cel.Validator
	hooks  http.Handler
}

// manager is as much of a manager as webhooks ask for when they are set up.
type manager struct {
	ctrl.Manager
	server webhook.Server
	client client.Client
}

func (m *manager) GetScheme() *runtime.Scheme       { return scheme }
func (m *manager) GetClient() client.Client         { return m.client }
func (m *manager) GetConfig() *rest.Config          { return nil }
func (m *manager) GetWebhookServer() webhook.Server { return m.server }

// theDoor is one for all tests: the definition is large.
var theDoor = sync.OnceValues(func() (*door, error) {
	where, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/jobset").Output()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(where)),
		"config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"))
	if err != nil {
		return nil, err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		return nil, err
	}
	if v := crd.Spec.Versions; len(v) != 1 || v[0].Name != jobset.GroupVersion.Version {
		return nil, fmt.Errorf("the definition has %d versions, and the first is not %s", len(v), jobset.GroupVersion)
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		return nil, err
	}
	d := &door{}
	if d.fields, err = schema.NewStructural(&props); err != nil {
		return nil, err
	}
	if d.values, _, err = validation.NewSchemaValidator(&props); err != nil {
		return nil, err
	}
	d.rules = cel.NewValidator(d.fields, true, celconfig.PerCallLimit)
	m := &manager{server: webhook.NewServer(webhook.Options{}), client: fake.NewClientBuilder().WithScheme(scheme).Build()}
	if err := webhooks.Setup(m); err != nil {
		return nil, err
	}
	d.hooks = m.server.WebhookMux()
	return d, nil
})

// create asks the door to take a new JobSet, and returns what would be stored.
func (d *door) create(js *jobset.JobSet) (*jobset.JobSet, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(js)
	if err != nil {
		return nil, err
	}
	delete(object, "status") // nobody writes it
	return d.take(object, nil)
}

// take is create of an object as it comes in, or an update of an old one.
func (d *door) take(object, old map[string]any) (*jobset.JobSet, error) {
	if unknown := pruning.PruneWithOptions(object, d.fields, true, schema.UnknownFieldPathOptions{
		TrackUnknownFieldPaths: true,
	}); len(unknown) > 0 {
		return nil, fmt.Errorf("unknown fields: %v", unknown)
	}
	defaulting.Default(object, d.fields)
	operation := admissionv1.Update
	if old == nil {
		operation = admissionv1.Create
		patch, err := d.ask("/mutate-jobset-x-k8s-io-v1alpha2-jobset", operation, object, nil)
		if err != nil {
			return nil, err
		}
		if object, err = patched(object, patch); err != nil {
			return nil, err
		}
		defaulting.Default(object, d.fields)
	}
	wrong := validation.ValidateCustomResource(nil, object, d.values)
	wrong = append(wrong, objectmeta.Validate(nil, object, d.fields, false)...)
	wrong = append(wrong, listtype.ValidateListSetsAndMaps(nil, d.fields, object)...)
	if len(wrong) == 0 {
		var before any
		if old != nil {
			before = old
		}
		var rules field.ErrorList
		rules, _ = d.rules.Validate(context.Background(), nil, d.fields, object, before, celconfig.RuntimeCELCostBudget)
		wrong = append(wrong, rules...)
	}
	if len(wrong) > 0 {
		return nil, wrong.ToAggregate()
	}
	if _, err := d.ask("/validate-jobset-x-k8s-io-v1alpha2-jobset", operation, object, old); err != nil {
		return nil, err
	}
	stored := &jobset.JobSet{}
	return stored, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object, stored, true)
}

// ask asks a webhook, as an API server does, and returns the patch that it answers.
func (d *door) ask(path string, operation admissionv1.Operation, object, old map[string]any) ([]byte, error) {
	raw := func(o map[string]any) (r runtime.RawExtension, err error) {
		if o != nil {
			r.Raw, err = json.Marshal(o)
		}
		return r, err
	}
	r := &admissionv1.AdmissionRequest{
		UID: "of-the-test", Operation: operation, Name: "perdure", Namespace: "default",
		Kind:     metav1.GroupVersionKind{Group: jobset.GroupVersion.Group, Version: "v1alpha2", Kind: "JobSet"},
		Resource: metav1.GroupVersionResource{Group: jobset.GroupVersion.Group, Version: "v1alpha2", Resource: "jobsets"},
		UserInfo: authenticationv1.UserInfo{Username: "helm"},
	}
	var err error
	if r.Object, err = raw(object); err != nil {
		return nil, err
	}
	if r.OldObject, err = raw(old); err != nil {
		return nil, err
	}
	review := &admissionv1.AdmissionReview{Request: r}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	request := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	d.hooks.ServeHTTP(answer, request)
	var says admissionv1.AdmissionReview
	if err := json.Unmarshal(answer.Body.Bytes(), &says); err != nil || says.Response == nil {
		return nil, fmt.Errorf("%s answers %d: %s (%w)", path, answer.Code, answer.Body, err)
	}
	if !says.Response.Allowed {
		return nil, fmt.Errorf("denied: %s", says.Response.Result.Message)
	}
	return says.Response.Patch, nil
}

// patched is an object after a patch.
func patched(object map[string]any, patch []byte) (map[string]any, error) {
	if len(patch) == 0 {
		return object, nil
	}
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	if text, err = p.Apply(text); err != nil {
		return nil, err
	}
	object = map[string]any{}
	return object, json.Unmarshal(text, &object)
}

// admitted is a JobSet as it would be stored.
func admitted(t *testing.T, js *jobset.JobSet) *jobset.JobSet {
	t.Helper()
	d, err := theDoor()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := d.create(js)
	if err != nil {
		t.Fatal(err)
	}
	stored.UID = js.UID
	return stored
}

// TestAdmitted: what the chart makes is taken; without the gate only what does not need it is.
func TestAdmitted(t *testing.T) {
	d, err := theDoor()
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range variants {
		for _, gate := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, gate %v", name, gate), func(t *testing.T) {
				features.SetFeatureGateDuringTest(t, features.RestartJob, gate)
				js := jobSetOf(t, made(t, values...))
				needs := false
				for _, r := range js.Spec.FailurePolicy.Rules {
					needs = needs || strings.HasPrefix(string(r.Action), "RestartJob") && r.Action != jobset.RestartJobSet
				}
				stored, err := d.create(js)
				if needs && !gate {
					if err == nil || !strings.Contains(err.Error(), "RestartJob feature gate is disabled") {
						t.Errorf("without the gate: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range stored.Spec.ReplicatedJobs {
					if mode := r.Template.Spec.CompletionMode; mode == nil || *mode != "Indexed" || r.GroupName != "default" {
						t.Errorf("%s is stored without what JobSet adds: %v, %q", r.Name, mode, r.GroupName)
					}
				}
			})
		}
	}
}

// TestDenied: what is wrong in a way that types alone do not see is not taken.
func TestDenied(t *testing.T) {
	features.SetFeatureGateDuringTest(t, features.RestartJob, true)
	d, err := theDoor()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*jobset.JobSet)
		says   string
	}{
		"operator":    {func(js *jobset.JobSet) { js.Spec.SuccessPolicy.Operator = "Some" }, "Unsupported value"},
		"target":      {func(js *jobset.JobSet) { js.Spec.SuccessPolicy.TargetReplicatedJobs[0] = "x" }, "does not appear"},
		"long name":   {func(js *jobset.JobSet) { js.Name = strings.Repeat("a", 60) }, "exceed 63 characters"},
		"rule's name": {func(js *jobset.JobSet) { js.Spec.FailurePolicy.Rules[0].Name = "1" }, "invalid failure policy rule name"},
		"same rules": {func(js *jobset.JobSet) {
			js.Spec.FailurePolicy.Rules[0].Name = js.Spec.FailurePolicy.Rules[1].Name
		}, "not unique"},
		"same groups": {func(js *jobset.JobSet) {
			js.Spec.ReplicatedJobs[0].Name = js.Spec.ReplicatedJobs[1].Name
		}, "Duplicate value"},
		"reason": {func(js *jobset.JobSet) {
			js.Spec.FailurePolicy.Rules[0].OnJobFailureReasons = []string{"Bored"}
		}, "job failure reason"},
	} {
		t.Run(name, func(t *testing.T) {
			js := jobSetOf(t, made(t))
			c.change(js)
			if _, err := d.create(js); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want that it says %q", err, c.says)
			}
		})
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(jobSetOf(t, made(t)))
	if err != nil {
		t.Fatal(err)
	}
	object["spec"].(map[string]any)["failurePolicies"] = map[string]any{}
	if _, err := d.take(object, nil); err == nil || !strings.Contains(err.Error(), "spec.failurePolicies") {
		t.Errorf("a field that is not there: %v", err)
	}
}

// TestFixed: as the guide says, neither the number of a job's pods nor what is in them can be changed while it runs.
func TestFixed(t *testing.T) {
	features.SetFeatureGateDuringTest(t, features.RestartJob, true)
	d, err := theDoor()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*jobset.JobSet)
		may    bool
	}{
		"nothing":  {func(*jobset.JobSet) {}, true},
		"replicas": {func(js *jobset.JobSet) { js.Spec.ReplicatedJobs[1].Replicas++ }, false},
		"image": {func(js *jobset.JobSet) {
			js.Spec.ReplicatedJobs[1].Template.Spec.Template.Spec.Containers[0].Image = "perdure:0.2.0"
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			stored := admitted(t, jobSetOf(t, made(t)))
			old, err := runtime.DefaultUnstructuredConverter.ToUnstructured(stored)
			if err != nil {
				t.Fatal(err)
			}
			c.change(stored)
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(stored)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.take(object, old); (err == nil) != c.may {
				t.Errorf("a change of %s: %v", name, err)
			}
		})
	}
}
