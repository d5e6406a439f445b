package inject

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v3"
	k8syaml "sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files")

const testImage = "example.com/mca@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func testOptions() Options {
	s := DefaultSidecar()
	s.Image = testImage
	return Options{Sidecar: s, Version: "v1.2.3", Kubernetes: KubeVersion{1, 37}}
}

func toJSON(t testing.TB, text string) []byte {
	t.Helper()
	b, err := k8syaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// applyPatch returns the pod with the patch applied.
func applyPatch(t testing.TB, pod []byte, patch Patch) map[string]any {
	t.Helper()
	root, err := decode(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range patch {
		if err := apply(root, o); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// show returns a verdict in the form of the golden files.
func show(t *testing.T, v Decision) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", v.Outcome, v.Code)
	for _, m := range append([]string{v.Message}, v.Warnings...) {
		if m != "" {
			fmt.Fprintln(&b, m)
		}
	}
	for _, o := range v.Patch {
		fmt.Fprintf(&b, "%s\n", encode(t, o))
	}
	return strings.ReplaceAll(b.String(), " \n", "\n")
}

// ADP-26: Acceptance 26, IN-02, IN-04, IN-05: the result for each pod.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/pod/*.txtar")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			o := testOptions()
			var pod []byte
			var keep []txtar.File
			for _, f := range a.Files {
				switch f.Name {
				case "options.yaml":
					if err := yaml.Unmarshal(f.Data, &o); err != nil {
						t.Fatal(err)
					}
				case "pod.yaml":
					pod = toJSON(t, string(f.Data))
				default:
					continue
				}
				keep = append(keep, f)
			}
			if err := o.Validate(); err != nil {
				t.Fatal(err)
			}
			v := Pod(pod, o)
			out := encode(t, applyPatch(t, pod, v.Patch))
			text, err := k8syaml.JSONToYAML(out)
			if err != nil {
				t.Fatal(err)
			}
			got := *a
			got.Files = append(keep, txtar.File{Name: "verdict", Data: []byte(show(t, v))}, txtar.File{Name: "out.yaml", Data: text})
			if b := txtar.Format(&got); *update {
				if err := os.WriteFile(path, b, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if want, _ := os.ReadFile(path); !bytes.Equal(b, want) {
				t.Errorf("%s differs; if that is meant, run: go test ./internal/inject -update\n%s", path, b)
			}
			checkLaws(t, pod, v, o)
		})
	}
}

// checkLaws checks the properties that hold for every verdict.
func checkLaws(t testing.TB, pod []byte, v Decision, o Options) {
	t.Helper()
	if again := Pod(pod, o); !reflect.DeepEqual(again, v) {
		t.Errorf("not the same twice:\n%v\n%v", v, again)
	}
	if (v.Outcome == Patched) != (len(v.Patch) > 0) {
		t.Errorf("%s with %d operations", v.Outcome, len(v.Patch))
	}
	if (v.Outcome == Refused || v.Outcome == Skipped) != (v.Code != "" && v.Message != "") {
		t.Errorf("%s for the reason %q: %s", v.Outcome, v.Code, v.Message)
	}
	if v.Outcome != Patched {
		return
	}
	out := encode(t, applyPatch(t, pod, v.Patch))
	if again := Pod(out, o); again.Outcome != Unchanged {
		t.Errorf("the injected pod: %s %s %s\n%s", again.Outcome, again.Code, again.Message, encode(t, again.Patch))
	}
	root, _ := decode(out)
	p, bad := parsePod(root, o)
	if bad != nil {
		t.Fatal(bad.message)
	}
	if first := p.volumes[0]["name"]; first != realVolume {
		t.Errorf("the first volume is %v", first)
	}
	inits := containerIndexes(p.spec["initContainers"])
	switch {
	case inits[0]["name"] != containerName:
		t.Errorf(`inits[0]["name"] = %v, want %v; out = %s`, inits[0]["name"], containerName, out)
	case inits[0]["image"] != o.Sidecar.Image:
		t.Errorf(`inits[0]["image"] = %v, want %v; out = %s`, inits[0]["image"], o.Sidecar.Image, out)
	case p.spec["automountServiceAccountToken"] != false:
		t.Errorf(`p.spec["automountServiceAccountToken"] = %v, want %v; out = %s`, p.spec["automountServiceAccountToken"], false, out)
	}
	// Every container except the adapter sees only the local credential, at most once.
	for _, m := range p.containers {
		if m.name == containerName {
			continue
		}
		here := 0
		for _, mt := range m.mounts {
			at, _ := mt["mountPath"].(string)
			name, _ := mt["name"].(string)
			if rest, ok := fieldPathBelow(at); ok && rest == "." && !documentedCodes(p.annotations[excludeAnnotation], m.name) {
				here++
				if !p.isAdapterMount(mt) {
					t.Errorf("%s mounts %v", m.name, mt)
				}
			}
			if projectsRealToken(p.volume(name)) || name == stateVolume {
				t.Errorf("%s mounts %v", m.name, mt)
			}
		}
		if documentedCodes(p.annotations[excludeAnnotation], m.name) {
			continue
		}
		if here != 1 {
			t.Errorf("%s has %d mounts of credentials", m.name, here)
		}
		for _, e := range m.env {
			if e["value"] != nil && e["valueFrom"] != nil {
				t.Errorf("%s: value and valueFrom in %v", m.name, e)
			}
		}
	}
}

func documentedCodes(names, name string) bool {
	for n := range strings.SplitSeq(names, ",") {
		if strings.TrimSpace(n) == name {
			return true
		}
	}
	return false
}

const labelled = `metadata: {labels: {mca.tailplane.dev/inject: "true"}, annotations: {%s}}
spec:
  %s
  containers:
  - name: application
    %s
  volumes: [%s]
`

// IN-03, IN-04, IN-06, AD-03: which pods are refused, and why.
func TestRefusals(t *testing.T) {
	realVolumeText := `{name: t, projected: {sources: [{serviceAccountToken: {path: token}}]}}`
	for _, tt := range []struct {
		why, annotations, spec, container, volumes string
		code                                       Code
		says                                       string
	}{
		{"any process of the node could use it", "", "hostNetwork: true", "", "", HostNetwork, "node"},
		{"no Windows image", "", "os: {name: windows}", "", "", Windows, "Linux"},
		{"no Windows image", "", "nodeSelector: {kubernetes.io/os: windows}", "", "", Windows, "Linux"},
		{"AD-03: a root neighbour reads /proc/<pid>/root", "", "shareProcessNamespace: true", "", "", SharedProcesses, "allow-shared-pid"},
		{"and so does one that sees the node's processes", "", "hostPID: true", "", "", SharedProcesses, "hostPID"},
		{"a user's container", "", "initContainers: [{name: mca}]", "", "", NameTaken, `"mca"`},
		{"a user's volume", "", "", "", "{name: mca-state, emptyDir: {}}", NameTaken, "mca-state"},
		{"a user's volume of the numbered ones", "", "", "", "{name: mca-credentials-7, emptyDir: {}}", NameTaken, "mca-credentials-7"},
		{"a mount of what is not there yet", "", "", "volumeMounts: [{name: kube-api-access-sa, mountPath: /x}]", "", NameTaken, "adapter"},
		{"a fake mount of the user's own", "", "", "volumeMounts: [{name: mca-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}]", "", NameTaken, "adapter"},
		{"the port", "", "", "ports: [{containerPort: 6443}]", "", PortTaken, "mca.tailplane.dev/port"},
		{"the port, if another is chosen", `mca.tailplane.dev/port: "8443"`, "", "ports: [{containerPort: 8443, protocol: TCP}]", "", PortTaken, "8443"},
		{"the admin port", "", "", "ports: [{containerPort: 9006}]", "", PortTaken, "9006"},
		{"the port of metrics", `mca.tailplane.dev/metrics: "true"`, "", "ports: [{containerPort: 9007}]", "", PortTaken, "9007"},
		{"something else where clients look", "", "", "volumeMounts: [{name: x, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]", "{name: x, secret: {secretName: x}}", CredentialsPathTaken, "credentials"},
		{"the same, spelled otherwise", "", "", "volumeMounts: [{name: x, mountPath: /run/secrets//kubernetes.io/serviceaccount/}]", "{name: x, secret: {secretName: x}}", CredentialsPathTaken, "credentials"},
		{"a file below", "", "", "volumeMounts: [{name: x, mountPath: /var/run/secrets/kubernetes.io/serviceaccount/token, subPath: t}]", "{name: x, emptyDir: {}}", CredentialsPathTaken, "token"},
		{"valueFrom", "", "", "env: [{name: KUBERNETES_SERVICE_HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]", "", VariableTaken, "another source"},
		{"another value", "", "", "env: [{name: KUBERNETES_SERVICE_PORT, value: '443'}]", "", VariableTaken, `"443"`},
		{"no value", "", "", "env: [{name: KUBERNETES_SERVICE_PORT}]", "", VariableTaken, "6443"},
		{"one right, one wrong", "", "", "env: [{name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}, {name: KUBERNETES_SERVICE_HOST, value: 10.0.0.1}]", "", VariableTaken, "10.0.0.1"},
		{"the real token elsewhere", "", "", "volumeMounts: [{name: t, mountPath: /t}]", realVolumeText, RealTokenMounted, "audience"},
		{"the real token in its place, by another name", "", "", "volumeMounts: [{name: t, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]", realVolumeText, RealTokenMounted, "audience"},
		{"the API server's own audience", "", "", "volumeMounts: [{name: t, mountPath: /t}]",
			`{name: t, projected: {sources: [{serviceAccountToken: {path: token, audience: "https://kubernetes.default.svc"}}]}}`, RealTokenMounted, "audience"},
		{"what admission added, mounted twice", "", "", "volumeMounts: [{name: kube-api-access-abcde, mountPath: /t}]",
			strings.Replace(realVolumeText, "{name: t", "{name: kube-api-access-abcde", 1), RealTokenMounted, "audience"},
		{"an excluded one is an application too", "mca.tailplane.dev/exclude-containers: application", "", "volumeMounts: [{name: t, mountPath: /t}]", realVolumeText, RealTokenMounted, "audience"},
		{"an init container is one too", "", "initContainers: [{name: i, volumeMounts: [{name: t, mountPath: /t}]}]", "", realVolumeText, RealTokenMounted, `"i"`},
		{"an unknown container", "mca.tailplane.dev/exclude-containers: nobody", "", "", "", BadAnnotation, "nobody"},
		{"our own", "mca.tailplane.dev/exclude-containers: mca", "", "", "", BadAnnotation, "mca"},
		{"a port that needs root", `mca.tailplane.dev/port: "443"`, "", "", "", BadAnnotation, "1024"},
		{"a port with a sign", `mca.tailplane.dev/port: "+7443"`, "", "", "", BadAnnotation, "1024"},
		{"the admin port", `mca.tailplane.dev/port: "9006"`, "", "", "", BadAnnotation, "9006"},
		{"not a name", "mca.tailplane.dev/config: ../x", "", "", "", BadAnnotation, "ConfigMap"},
		{"not a name", "mca.tailplane.dev/credentials: 'a,b/c'", "", "", "", BadAnnotation, "Secrets"},
		{"twice", "mca.tailplane.dev/credentials: 'a,a'", "", "", "", BadAnnotation, "once"},
		{"a path", "mca.tailplane.dev/credentials: 'a..b'", "", "", "", BadAnnotation, "Secrets"},
		{"no audience", "mca.tailplane.dev/token-audiences: 'west='", "", "", "", BadAnnotation, "west="},
		{"cluster twice", "mca.tailplane.dev/token-audiences: 'west=a,west=b'", "", "", "", BadAnnotation, "once"},
		{"not a cluster", "mca.tailplane.dev/token-audiences: '../west=a'", "", "", "", BadAnnotation, "west"},
		{"neither true nor false", "mca.tailplane.dev/metrics: 'yes'", "", "", "", BadAnnotation, "true"},
		{"not a list", "", "initContainers: {}", "", "", BadPod, "spec.initContainers is not a list"},
		{"not a string", "", "", "volumeMounts: [{name: 1}]", "", BadPod, "volumeMounts.name is not a string"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			pod := toJSON(t, fmt.Sprintf(labelled, tt.annotations, tt.spec, tt.container, tt.volumes))
			v := Pod(pod, testOptions())
			switch {
			case v.Outcome != Refused:
				t.Errorf("v.Outcome = %q, want %q; %s", v.Outcome, Refused, pod)
			case v.Code != tt.code:
				t.Errorf("v.Code = %q, want %q; %s", v.Code, tt.code, pod)
			case !strings.Contains(v.Message, tt.says):
				t.Errorf("v.Message = %q does not contain %q; %s", v.Message, tt.says, pod)
			case v.Patch != nil:
				t.Errorf("v.Patch = %v, want nil; %s", v.Patch, pod)
			}
			// If only the namespace requests the adapter, the pod runs without it.
			if tt.code == BadPod {
				return
			}
			o := testOptions()
			o.Unlabelled = TryUnlabelled
			v = Pod(bytes.Replace(pod, []byte(`"mca.tailplane.dev/inject":"true"`), nil, 1), o)
			switch {
			case v.Outcome != Skipped:
				t.Errorf("unlabelled: v.Outcome = %q, want %q", v.Outcome, Skipped)
			case v.Code != tt.code:
				t.Errorf("unlabelled: v.Code = %q, want %q", v.Code, tt.code)
			case len(v.Warnings) != 1:
				t.Errorf("unlabelled: len(v.Warnings) = %v, want 1", len(v.Warnings))
			case v.Patch != nil:
				t.Errorf("unlabelled: v.Patch = %v, want nil", v.Patch)
			}
			o.Unlabelled = InjectUnlabelled
			v = Pod(bytes.Replace(pod, []byte(`"mca.tailplane.dev/inject":"true"`), nil, 1), o)
			if v.Outcome != Refused {
				t.Errorf("named: %s %s", v.Outcome, v.Code)
			}
		})
	}
}

func TestLabels(t *testing.T) {
	const spec = `spec: {containers: [{name: a}]}`
	for _, tt := range []struct {
		why, meta  string
		unlabelled Unlabelled
		outcome    Outcome
		code       Code
	}{
		{"asks", `metadata: {labels: {mca.tailplane.dev/inject: "true"}}`, SkipUnlabelled, Patched, ""},
		{"does not ask", `metadata: {}`, SkipUnlabelled, Skipped, NotLabelled},
		{"no metadata at all", ``, SkipUnlabelled, Skipped, NotLabelled},
		{"opts out of its namespace's", `metadata: {labels: {mca.tailplane.dev/inject: "false"}}`, TryUnlabelled, Skipped, OptedOut},
		{"opts out of a file's", `metadata: {labels: {mca.tailplane.dev/inject: "false"}}`, InjectUnlabelled, Skipped, OptedOut},
		{"another word", `metadata: {labels: {mca.tailplane.dev/inject: "yes"}}`, TryUnlabelled, Refused, BadLabel},
		{"no word", `metadata: {labels: {mca.tailplane.dev/inject: ""}}`, TryUnlabelled, Refused, BadLabel},
		{"IN-06: mirrors a static pod", `metadata: {labels: {mca.tailplane.dev/inject: "true"}, annotations: {kubernetes.io/config.mirror: x}}`, InjectUnlabelled, Skipped, MirrorPod},
	} {
		o := testOptions()
		o.Unlabelled = tt.unlabelled
		switch v := Pod(toJSON(t, tt.meta+"\n"+spec), o); {
		case v.Outcome != tt.outcome:
			t.Errorf("%s: v.Outcome = %q, want %q", tt.why, v.Outcome, tt.outcome)
		case v.Code != tt.code:
			t.Errorf("%s: v.Code = %q, want %q", tt.why, v.Code, tt.code)
		case v.Warnings != nil:
			t.Errorf("%s: v.Warnings = %v, want nil", tt.why, v.Warnings)
		}
	}
}

// IN-06: an old API server would drop restartPolicy, so that the pod never starts.
func TestOldCluster(t *testing.T) {
	for _, tt := range []struct {
		version string
		refused bool
	}{{"v1.28.15", true}, {"1.28", true}, {"v1.29.0", false}, {"1.29+", false}, {"v1.33.1-gke.100", false}, {"v1.30.2+k3s1", false}, {"2.0", false}} {
		o := testOptions()
		var err error
		if o.Kubernetes, err = ParseKubeVersion(tt.version); err != nil {
			t.Errorf("%s: %v", tt.version, err)
		}
		if v := Pod(toJSON(t, fmt.Sprintf(labelled, "", "", "", "")), o); (v.Code == ClusterTooOld) != tt.refused {
			t.Errorf("%s: %s %s", tt.version, v.Outcome, v.Code)
		}
	}
	for _, bad := range []string{"", "1", "v1.x", "1.29 ", "1.29;rm", "99999999999999999999.1"} {
		if v, err := ParseKubeVersion(bad); err == nil {
			t.Errorf("%q is %v", bad, v)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		change func(*Options)
		says   string
	}{
		{func(o *Options) {}, ""},
		{func(o *Options) { o.Sidecar.Image = "registry.example:5000/a/mca:v1" }, ""},
		{func(o *Options) { o.Sidecar.Image = "" }, "missing"},
		{func(o *Options) { o.Sidecar.Image = "example.com/mca" }, "neither a tag nor a digest"},
		{func(o *Options) { o.Sidecar.Image = "registry.example:5000/mca" }, "neither a tag nor a digest"},
		{func(o *Options) { o.Sidecar.Image = "example.com/mca:latest" }, "latest"},
		{func(o *Options) { o.Sidecar.Image = "example.com/mca:v1 --x" }, "neither"},
		{func(o *Options) { o.Sidecar.LogLevel = "loud" }, "logLevel"},
		{func(o *Options) { o.Sidecar.ImagePullPolicy = "Sometimes" }, "imagePullPolicy"},
		{func(o *Options) { o.Sidecar.Port = 80 }, "port 80"},
		{func(o *Options) { o.Sidecar.Resources.Limits.Memory = "much" }, "quantity"},
		{func(o *Options) { o.Version = "" }, "version"},
	} {
		o := testOptions()
		tt.change(&o)
		if err := o.Validate(); (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v; want %q", err, tt.says)
		}
	}
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct{ text, says string }{
		{`{"a":{"b":1,"b":2}}`, "twice"}, {`[]`, "not a JSON object"}, {`{} {}`, "after the JSON object"}, {``, "incomplete"}, {`{"a":`, "incomplete"}, {`{"a":1`, "incomplete"},
		{`{'a':1}`, "byte"}, {"{\"a\":\"\xff\"}", "UTF-8"}, {strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200), "deeper"},
		{strings.Repeat("[", 1<<20), "deeper"}, {"\x00", "byte"}, {"null", "not a JSON object"},
	} {
		switch v := Pod([]byte(tt.text), testOptions()); {
		case v.Outcome != Refused:
			t.Errorf("v.Outcome = %q, want %q; %.40q", v.Outcome, Refused, tt.text)
		case v.Code != BadPod:
			t.Errorf("v.Code = %q, want %q; %.40q", v.Code, BadPod, tt.text)
		case !strings.Contains(v.Message, tt.says):
			t.Errorf("v.Message = %q does not contain %q; %.40q", v.Message, tt.says, tt.text)
		}
	}
}

func TestQuantity(t *testing.T) {
	for _, same := range [][2]string{{"1", "1000m"}, {"1Gi", "1024Mi"}, {"0.5", "500m"}, {"1k", "1000"}, {".5", "0.50"}} {
		switch a, b := quantity(same[0]), quantity(same[1]); {
		case a == nil:
			t.Errorf("a is nil; %s; %s", same[0], same[1])
		case b == nil:
			t.Errorf("b is nil; %s; %s", same[0], same[1])
		case a.Cmp(b) != 0:
			t.Errorf("a.Cmp(b) != 0; %s, %s", same[0], same[1])
		}
	}
	for _, bad := range []any{"", "m", "1e3", "-1", "1 Mi", "x", nil, true, "1.2.3"} {
		if q := quantity(bad); q != nil {
			t.Errorf("%v is %v", bad, q)
		}
	}
}

// IN-02: the status hash depends on exactly the injected parts.
func TestHash(t *testing.T) {
	o := testOptions()
	was, err := Hash(map[string]string{"other": "x"}, o)
	if err != nil {
		t.Fatal(err)
	}
	o.Version = "v9"
	if h, _ := Hash(nil, o); h != was {
		t.Error("another version with the same injection has another hash")
	}
	if h, _ := Hash(map[string]string{configAnnotation: "c"}, o); h == was {
		t.Error("another configuration has the same hash")
	}
	o.Sidecar.Resources.Limits.CPU = "2"
	if h, _ := Hash(nil, o); h == was {
		t.Error("another limit has the same hash")
	}
	now := map[string]string{Status: `{"version":"v1","hash":"` + was + `"}`}
	switch version, current, ok := Current(now, testOptions()); {
	case version != "v1":
		t.Errorf("a current pod counts as outdated: version = %q, want %q", version, "v1")
	case !current:
		t.Error("a current pod counts as outdated: current is false")
	case !ok:
		t.Error("a current pod counts as outdated: ok is false")
	}
	if _, current, ok := Current(now, o); current || !ok {
		t.Error("an outdated pod counts as current")
	}
	if _, _, ok := Current(map[string]string{Status: "x"}, o); ok {
		t.Error("a pod without the adapter has a hash")
	}
	if _, err := Hash(map[string]string{portAnnotation: "x"}, o); err == nil {
		t.Error("a bad annotation has a hash")
	}
}

// Laws: no input causes a panic; the injection is complete; nothing else changes.
func FuzzPod(f *testing.F) {
	files, err := filepath.Glob("testdata/pod/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range files {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			if strings.HasSuffix(file.Name, ".yaml") && file.Name != "options.yaml" {
				f.Add(toJSON(f, string(file.Data)))
			}
		}
	}
	f.Fuzz(func(t *testing.T, pod []byte) {
		o := testOptions()
		o.Unlabelled = InjectUnlabelled
		checkLaws(t, pod, Pod(pod, o), o)
		Ephemeral(pod, pod, o)
	})
}
