// Package inject puts the adapter into a pod: pod in, JSON patch out, or the
// reason why not. It keeps law 7: a pod that asks for the adapter and cannot have
// it is refused with the reason, and is never let through without it.
//
// Everything here is pure: it asks nobody, reads no file and knows no secret. Of
// a pod it changes its own parts only; what it does not know it keeps.
package inject

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Options say what is injected, and into what.
type Options struct {
	Sidecar    Sidecar
	Version    string      // of the program that injects, for the status annotation; required
	Kubernetes KubeVersion // of the API server; zero: not known, and not asked about
	Unlabelled Unlabelled
}

// Unlabelled is what becomes of a pod that has no label of ours.
type Unlabelled int

// The first is the safe one.
const (
	SkipUnlabelled   Unlabelled = iota // it did not ask
	TryUnlabelled                      // its namespace asked: it is injected, or skipped with a warning where that is impossible
	InjectUnlabelled                   // somebody names it: it is injected or refused
)

// A Sidecar is how the adapter runs where a pod does not say.
type Sidecar struct {
	Image           string    `yaml:"image"`                     // by digest, or by a tag that is not "latest"; required
	ImagePullPolicy string    `yaml:"imagePullPolicy,omitempty"` // "": Kubernetes' own default
	LogLevel        string    `yaml:"logLevel,omitempty"`        // "": the adapter's own default
	Port            uint16    `yaml:"port,omitempty"`            // on 127.0.0.1; 0: 6443
	Resources       Resources `yaml:"resources"`
}

// Resources are quantities of Kubernetes; "" leaves one out.
type Resources struct {
	Requests Amounts `yaml:"requests"`
	// Limits.CPU is set only in a pod all whose containers have one: there it keeps
	// the pod's QoS class and satisfies a quota; elsewhere it would only throttle.
	Limits Amounts `yaml:"limits"`
}

// Amounts are quantities such as "20m" and "32Mi".
type Amounts struct {
	CPU    string `yaml:"cpu,omitempty" json:"cpu,omitempty"`
	Memory string `yaml:"memory,omitempty" json:"memory,omitempty"`
}

// DefaultSidecar is what an installation need not say; it has no image.
func DefaultSidecar() Sidecar {
	return Sidecar{Port: defaultPort, Resources: Resources{
		Requests: Amounts{CPU: "20m", Memory: "32Mi"},
		Limits:   Amounts{CPU: "100m", Memory: "64Mi"},
	}}
}

// Ports of the adapter inside its pod.
const (
	defaultPort = 6443
	adminPort   = 9006
	metricsPort = 9007
)

// image is a reference that names one image: with a tag or a digest.
var image = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|@sha256:[0-9a-f]{64})$`)

// Validate says what is wrong with the options, all at once.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	s := o.Sidecar
	name := s.Image[strings.LastIndexByte(s.Image, '/')+1:]
	switch {
	case s.Image == "":
		bad("the image of the adapter is missing; name it by its digest")
	case !image.MatchString(s.Image) || !strings.Contains(name, ":"):
		bad("the image of the adapter, %.80q, has neither a tag nor a digest", s.Image)
	case strings.HasSuffix(name, ":latest"):
		bad("the image of the adapter, %.80q, is whatever is latest when a pod starts; name one by its digest", s.Image)
	}
	switch s.ImagePullPolicy {
	case "", "Always", "IfNotPresent", "Never":
	default:
		bad("imagePullPolicy %.40q: Always, IfNotPresent or Never", s.ImagePullPolicy)
	}
	switch s.LogLevel {
	case "", "debug", "info", "warn", "error":
	default:
		bad("logLevel %.40q: debug, info, warn or error", s.LogLevel)
	}
	if s.Port != 0 && !goodPort(s.Port) {
		bad("port %d: 1024 or above, and neither %d nor %d", s.Port, adminPort, metricsPort)
	}
	for _, q := range []string{s.Resources.Requests.CPU, s.Resources.Requests.Memory, s.Resources.Limits.CPU, s.Resources.Limits.Memory} {
		if q != "" && quantity(q) == nil {
			bad("%.40q is not a quantity such as 20m or 32Mi", q)
		}
	}
	if o.Version == "" {
		bad("the version of the program is missing")
	}
	return errors.Join(errs...)
}

func goodPort(p uint16) bool { return p >= 1024 && p != adminPort && p != metricsPort }

// A KubeVersion is the version of an API server.
type KubeVersion struct{ Major, Minor int }

var kubeVersion = regexp.MustCompile(`^v?([0-9]{1,3})\.([0-9]{1,3})(\.[0-9]+)?\+?([-+][A-Za-z0-9.+-]*)?$`)

// ParseKubeVersion reads "v1.37.0", "1.29" or what a vendor made of it.
func ParseKubeVersion(s string) (KubeVersion, error) {
	m := kubeVersion.FindStringSubmatch(s)
	if m == nil {
		return KubeVersion{}, fmt.Errorf("%.40q is not a version of Kubernetes such as 1.37", s)
	}
	major, _ := strconv.Atoi(m[1]) // at most three digits
	minor, _ := strconv.Atoi(m[2])
	return KubeVersion{major, minor}, nil
}

// lacksSidecars reports whether v is known to start no container with
// restartPolicy before the others: the pod would wait for ever.
func (v KubeVersion) lacksSidecars() bool {
	return v != KubeVersion{} && (v.Major < 1 || v.Major == 1 && v.Minor < 29)
}

// An Outcome is what became of a pod. It is also the label of a metric.
type Outcome string

// Outcomes; Patched is the only one with a patch, Refused the only one that keeps the pod out.
const (
	Patched   Outcome = "patched"
	Unchanged Outcome = "unchanged" // it has everything already
	Skipped   Outcome = "skipped"   // it is none of our business
	Refused   Outcome = "refused"
)

// A Code is the stable name of a reason.
type Code string

// Reasons to skip, and then to refuse, in the order in which they are looked for.
const (
	MirrorPod Code = "mirror_pod"
	OptedOut  Code = "opted_out"
	NotAsked  Code = "not_asked"

	BadPod               Code = "bad_pod"
	BadLabel             Code = "bad_label"
	BadAnnotation        Code = "bad_annotation"
	ClusterTooOld        Code = "cluster_too_old"
	HostNetwork          Code = "host_network"
	Windows              Code = "windows"
	SharedProcesses      Code = "shared_processes"
	NameTaken            Code = "name_taken"
	PortTaken            Code = "port_taken"
	RealTokenMounted     Code = "real_token_mounted"
	CredentialsPathTaken Code = "credentials_path_taken"
	VariableTaken        Code = "variable_taken"
)

// Codes returns every code, in the order in which the docs list them.
func Codes() []Code {
	return []Code{MirrorPod, OptedOut, NotAsked, BadPod, BadLabel, BadAnnotation, ClusterTooOld, HostNetwork, Windows, SharedProcesses,
		NameTaken, PortTaken, RealTokenMounted, CredentialsPathTaken, VariableTaken}
}

// A Verdict is the decision about one pod.
type Verdict struct {
	Outcome  Outcome
	Code     Code     // why it was skipped or refused, else ""
	Message  string   // the same for people, with what to try
	Patch    Patch    // in the order in which it is applied
	Warnings []string // for whoever made the pod
}

// A refusal is the reason why a pod cannot have the adapter.
type refusal struct {
	code    Code
	message string
}

func refuse(code Code, format string, args ...any) *refusal {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// Pod decides on a pod, or the template of one, in JSON. The options must be valid.
func Pod(pod []byte, o Options) Verdict {
	root, err := decode(pod)
	if err != nil {
		return Verdict{Outcome: Refused, Code: BadPod, Message: "the pod cannot be read: " + err.Error()}
	}
	return decide(root, o)
}

// decide is Pod on a decoded pod, which it changes.
func decide(root map[string]any, o Options) Verdict {
	p, bad := look(root, o)
	if bad != nil {
		return Verdict{Outcome: Refused, Code: bad.code, Message: bad.message}
	}
	if code, why := p.skip(o.Unlabelled); code != "" {
		return Verdict{Outcome: Skipped, Code: code, Message: why}
	}
	bad = p.refuse(o)
	if bad == nil {
		v := Verdict{Outcome: Patched, Patch: p.inject(o), Warnings: p.warnings}
		if len(v.Patch) == 0 {
			v.Outcome = Unchanged
		}
		return v
	}
	if p.label == "" && o.Unlabelled == TryUnlabelled {
		return Verdict{Outcome: Skipped, Code: bad.code, Message: bad.message,
			Warnings: []string{"this pod runs without the adapter that its namespace asks for: " + bad.message}}
	}
	return Verdict{Outcome: Refused, Code: bad.code, Message: bad.message}
}
