package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

const reviewText = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE",
"object":{"metadata":{"labels":{"mca.tailplane.dev/inject":"true"}},"spec":{"containers":[{"name":"a"}]}},"futureField":1}}`

func testWebhook(t *testing.T) (http.Handler, *[]string) {
	var results []string
	w := &Webhook{Options: testOptions(), Log: slog.New(slog.DiscardHandler), Measure: func(result string, _ time.Duration) {
		if !slices.Contains(Results(), result) {
			t.Errorf("result %q", result)
		}
		results = append(results, result)
	}, Config: func(doc, previous []byte) (wrong, warnings []string) {
		if string(doc) == "bad" || string(previous) == "newer" {
			return []string{"first", "second"}, nil
		}
		return nil, []string{"careful"}
	}}
	return w.Handler(), &results
}

// IN-07: every kind of request to the webhook, and its response.
func TestWebhook(t *testing.T) {
	h, results := testWebhook(t)
	with := func(old, new string) string {
		if !strings.Contains(reviewText, old) {
			t.Fatal(old)
		}
		return strings.Replace(reviewText, old, new, 1)
	}
	for _, tt := range []struct {
		why, method, path, kind, body string
		status                        int
		allowed                       bool // of a response
		says                          string
	}{
		{"as it is meant", "POST", "/mutate", "application/json", reviewText, 200, true, "JSONPatch"},
		{"with a charset", "POST", "/mutate", "application/json; charset=utf-8", reviewText, 200, true, "JSONPatch"},
		{"GET", "GET", "/mutate", "", "", 405, false, ""},
		{"elsewhere", "POST", "/", "application/json", reviewText, 404, false, ""},
		{"no type", "POST", "/mutate", "", reviewText, 415, false, "application/json"},
		{"YAML", "POST", "/mutate", "application/yaml", reviewText, 415, false, "application/json"},
		{"protobuf", "POST", "/mutate", "application/vnd.kubernetes.protobuf", reviewText, 415, false, "application/json"},
		{"nothing", "POST", "/mutate", "application/json", "", 400, false, "incomplete"},
		{"no request", "POST", "/mutate", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400, false, "no request"},
		{"request null", "POST", "/mutate", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`, 400, false, "no request"},
		{"v1beta1", "POST", "/mutate", "application/json", with("k8s.io/v1", "k8s.io/v1beta1"), 400, false, "v1beta1"},
		{"another kind", "POST", "/mutate", "application/json", with(`"kind":"AdmissionReview"`, `"kind":"ConversionReview"`), 400, false, "ConversionReview"},
		{"no uid", "POST", "/mutate", "application/json", with(`"uid":"u",`, ""), 400, false, "uid"},
		{"duplicate key", "POST", "/mutate", "application/json", with(`"uid":"u"`, `"uid":"u","uid":"v"`), 400, false, "twice"},
		{"duplicate key deep down", "POST", "/mutate", "application/json", with(`{"name":"a"}`, `{"name":"a","name":"mca"}`), 400, false, "twice"},
		{"wrong type", "POST", "/mutate", "application/json", with(`"operation":"CREATE"`, `"operation":1`), 400, false, "request.operation is not a string"},
		{"3 MiB", "POST", "/mutate", "application/json", with(`"futureField":1`, `"futureField":"`+strings.Repeat("x", 3<<20)+`"`), 413, false, "bytes"},
		{"just below", "POST", "/mutate", "application/json", with(`"futureField":1`, `"futureField":"`+strings.Repeat("x", 3<<20-1000)+`"`), 200, true, "JSONPatch"},
		{"deep", "POST", "/mutate", "application/json", with(`"futureField":1`, `"futureField":`+strings.Repeat("[", 1<<20)+strings.Repeat("]", 1<<20)), 400, false, "deeper"},
		{"an update", "POST", "/mutate", "application/json", with(`"CREATE"`, `"UPDATE"`), 200, false, "registration"},
		{"a deployment", "POST", "/mutate", "application/json", with(`"resource":"pods"`, `"resource":"deployments"`), 200, false, "registration"},
		{"a subresource", "POST", "/mutate", "application/json", with(`"operation"`, `"subResource":"exec","operation"`), 200, false, "registration"},
		{"no object", "POST", "/mutate", "application/json", with(`"object"`, `"other"`), 200, false, "registration"},
		{"a pod of another shape", "POST", "/mutate", "application/json", with(`[{"name":"a"}]`, `{}`), 200, false, "spec.containers is not a list"},
		{"a pod that cannot", "POST", "/mutate", "application/json", with(`"spec":{`, `"spec":{"hostNetwork":true,`), 200, false, "hostNetwork"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			*results = nil
			req := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body))
			req.Header.Set("Content-Type", tt.kind)
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if rec.Code != tt.status {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
			text := rec.Body.String()
			if tt.status == 200 {
				var a admissionReview
				switch err := json.Unmarshal(rec.Body.Bytes(), &a); {
				case err != nil:
					t.Fatalf("%v; text = %s", err, text)
				case a.Response.UID != "u":
					t.Fatalf("a.Response.UID = %q, want %q; text = %s", a.Response.UID, "u", text)
				case a.Response.Allowed != tt.allowed:
					t.Fatalf("a.Response.Allowed = %v, want %v; text = %s", a.Response.Allowed, tt.allowed, text)
				case a.APIVersion != reviewVersion:
					t.Fatalf("a.APIVersion = %q, want %q; text = %s", a.APIVersion, reviewVersion, text)
				}
				var p Patch
				if tt.allowed && json.Unmarshal(a.Response.Patch, &p) != nil || tt.allowed != (len(p) > 0) {
					t.Errorf("patch %s", a.Response.Patch)
				}
				if !tt.allowed && a.Response.Status.Message == "" {
					t.Error("a denial without a message")
				}
			}
			if !strings.Contains(text, tt.says) {
				t.Errorf("%s does not contain %q", text, tt.says)
			}
			if want := tt.status != 404 && tt.status != 405; want != (len(*results) == 1) {
				t.Errorf("counted %v", *results)
			}
		})
	}
	req := httptest.NewRequest("POST", "/mutate", strings.NewReader(reviewText))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Content-Encoding", "gzip")
	rec := httptest.NewRecorder()
	if h.ServeHTTP(rec, req); rec.Code != 415 {
		t.Errorf("gzip: %d", rec.Code)
	}
}

// TestValidateConfig checks that a ConfigMap with an adapter configuration is validated when it is written.
func TestValidateConfig(t *testing.T) {
	h, _ := testWebhook(t)
	const text = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","resource":{"group":"","version":"v1","resource":"configmaps"},"operation":"UPDATE","object":{"data":%s},"oldObject":{"data":%s}}}`
	for _, tt := range []struct {
		why, doc, old string
		allowed       bool
		says          string
	}{
		{"good", `{"config.yaml":"good"}`, `{"config.yaml":"good"}`, true, "careful"},
		{"new", `{"config.yaml":"good"}`, `null`, true, "careful"},
		{"bad", `{"config.yaml":"bad"}`, `null`, false, "(bad_config): first; second"},
		{"older than it was", `{"config.yaml":"good"}`, `{"config.yaml":"newer"}`, false, "first"},
		{"empty", `{}`, `null`, false, "no config.yaml"},
		{"another type", `{"config.yaml":1}`, `null`, false, "string"},
	} {
		req := httptest.NewRequest("POST", "/validate-config", strings.NewReader(fmt.Sprintf(text, tt.doc, tt.old)))
		req.Header.Set("Content-Type", "application/json")
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		var a admissionReview
		switch err := json.Unmarshal(rec.Body.Bytes(), &a); {
		case err != nil:
			t.Errorf("%s: %v", tt.why, err)
		case a.Response.Allowed != tt.allowed:
			t.Errorf("%s: a.Response.Allowed = %v, want %v", tt.why, a.Response.Allowed, tt.allowed)
		case !strings.Contains(rec.Body.String(), tt.says):
			t.Errorf("%s: rec.Body.String() = %q does not contain %q", tt.why, rec.Body.String(), tt.says)
		case a.Response.Patch != nil:
			t.Errorf("%s: a.Response.Patch = %v, want nil", tt.why, a.Response.Patch)
		}
	}
	req := httptest.NewRequest("POST", "/validate-config", strings.NewReader(reviewText))
	req.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	if h.ServeHTTP(rec, req); !strings.Contains(rec.Body.String(), "registration") {
		t.Errorf("a pod: %s", rec.Body)
	}
}

// TestReviewWarns checks that in a labelled namespace, an unlabelled pod that cannot have the adapter runs
// with a warning.
func TestReviewWarns(t *testing.T) {
	text := strings.Replace(strings.Replace(reviewText, `"spec":{`, `"spec":{"hostNetwork":true,`, 1), `"mca.tailplane.dev/inject":"true"`, "", 1)
	b, v, err := Review([]byte(text), testOptions())
	var a admissionReview
	switch {
	case err != nil:
		t.Error(err)
	case json.Unmarshal(b, &a) != nil:
		t.Errorf("json.Unmarshal(b, &a) is not nil; %v, %s", err, b)
	case !a.Response.Allowed:
		t.Errorf("a.Response.Allowed is false; %v, %s", err, b)
	case len(a.Response.Warnings) != 1:
		t.Errorf("len(a.Response.Warnings) = %v, want 1", len(a.Response.Warnings))
	case v.Outcome != Skipped:
		t.Errorf("v.Outcome = %q, want %q", v.Outcome, Skipped)
	case a.Response.Audit["reason"] != string(HostNetwork):
		t.Errorf(`a.Response.Audit["reason"] = %q, want %q`, a.Response.Audit["reason"], string(HostNetwork))
	}
}

const injectedText = `{"metadata":{"annotations":{"mca.tailplane.dev/status":"{\"version\":\"v1\",\"hash\":\"sha256:00\"}"%s}},"spec":{"containers":[{"name":"a"}],
"volumes":[{"name":"kube-api-access-sa","projected":{"sources":[{"serviceAccountToken":{"path":"token"}}]}}],"ephemeralContainers":[%s]}}`

// TestEphemeral checks that a debug container gets only the adapter's credential, and that existing
// containers do not change.
// Ephemeral decides on the ephemeral containers of a pod in JSON.
func Ephemeral(old, updated []byte, o Options) Decision {
	before, err := decode(old)
	if err != nil {
		return Decision{Outcome: Refused, Code: BadPod, Message: "the previous pod cannot be read: " + err.Error()}
	}
	root, err := decode(updated)
	if err != nil {
		return Decision{Outcome: Refused, Code: BadPod, Message: "the pod cannot be read: " + err.Error()}
	}
	return ephemeral(before, root, o)
}

func TestEphemeral(t *testing.T) {
	old := fmt.Sprintf(injectedText, "", `{"name":"first"}`)
	for _, tt := range []struct {
		why, annotations, added string
		outcome                 Outcome
		says                    string
	}{
		{"one more", "", `{"name":"second"}`, Patched, ""},
		{"with a target", "", `{"name":"second","targetContainerName":"a"}`, Patched, ""},
		{"AD-03: with our processes", "", `{"name":"second","targetContainerName":"mca"}`, Refused, "allow-shared-pid"},
		{"AD-03: with the real credential", "", `{"name":"second","volumeMounts":[{"name":"kube-api-access-sa","mountPath":"/x"}]}`, Refused, "adapter"},
		{"IN-03", "", `{"name":"second","env":[{"name":"KUBERNETES_SERVICE_HOST","valueFrom":{"fieldRef":{"fieldPath":"x"}}}]}`, Refused, "another source"},
		{"IN-03", "", `{"name":"second","env":[{"name":"KUBERNETES_SERVICE_HOST","value":"10.0.0.1"}]}`, Refused, "10.0.0.1"},
	} {
		v := Ephemeral([]byte(old), fmt.Appendf(nil, injectedText, tt.annotations, `{"name":"first"},`+tt.added), testOptions())
		if v.Outcome != tt.outcome || !strings.Contains(v.Message, tt.says) {
			t.Errorf("%s: %+v", tt.why, v)
		}
		if v.Outcome != Patched {
			continue
		}
		for _, o := range v.Patch {
			if !strings.HasPrefix(o.Path, "/spec/ephemeralContainers/1/") {
				t.Errorf("%s: %s", tt.why, o.Path)
			}
		}
		root := applyPatch(t, fmt.Appendf(nil, injectedText, tt.annotations, `{"name":"first"},`+tt.added), v.Patch)
		if again := Ephemeral([]byte(old), encode(t, root), testOptions()); again.Outcome != Unchanged {
			t.Errorf("%s: twice: %+v", tt.why, again)
		}
	}
	bare := bytes.Replace([]byte(old), []byte(Status), []byte("x"), 1)
	if v := Ephemeral(bare, bare, testOptions()); v.Outcome != Skipped {
		t.Errorf("a pod without the adapter: %+v", v)
	}
	if v := Ephemeral([]byte("x"), bare, testOptions()); v.Outcome != Refused {
		t.Errorf("no pod: %+v", v)
	}
}

// Law: for any input there is an error for the sender or a complete response.
func FuzzReview(f *testing.F) {
	f.Add([]byte(reviewText))
	f.Fuzz(func(t *testing.T, body []byte) {
		b, v, err := Review(body, testOptions())
		if err != nil {
			return
		}
		var a admissionReview
		switch err := json.Unmarshal(b, &a); {
		case err != nil:
			t.Errorf("%v; %s", err, b)
		case a.Response.UID == "":
			t.Errorf("a.Response.UID is empty; %v, %s", err, b)
		case a.Response.Allowed == (v.Outcome == Refused):
			t.Errorf("a.Response.Allowed = %v, the same as (v.Outcome == Refused); %s", a.Response.Allowed, b)
		}
	})
}

// BenchmarkReview has the budget of one response of the webhook.
func BenchmarkReview(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Review([]byte(reviewText), testOptions()); err != nil {
			b.Fatal(err)
		}
	}
}
