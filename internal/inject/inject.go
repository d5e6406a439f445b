// Package inject injects the adapter into a pod. It maps a pod to a JSON patch or to the reason why there is
// none. It keeps law 7: a pod that requests the adapter and cannot have it is refused with the reason. It is
// never admitted without the adapter.
//
// The package is pure: it makes no requests, reads no files and has no secrets. It changes only the adapter's
// parts of a pod and keeps fields that it does not know.
package inject

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Options configure the injection.
type Options struct {
	Sidecar    Sidecar
	Version    string      // of the injecting program, for the status annotation; required
	Kubernetes KubeVersion // of the API server; zero: unknown, and not checked
	Unlabelled Unlabelled
}

// Unlabelled selects the treatment of pods without the injection label.
type Unlabelled int

// The zero value is the safe one.
const (
	SkipUnlabelled   Unlabelled = iota // skip: the pod did not request the adapter
	TryUnlabelled                      // the namespace requested it: inject, or skip with a warning if that is impossible
	InjectUnlabelled                   // the user named the pod explicitly: inject or refuse
)

// Sidecar configures the adapter for pods that do not override it.
type Sidecar struct {
	Image           string    `yaml:"image"`                     // by digest, or by a tag other than "latest"; required
	ImagePullPolicy string    `yaml:"imagePullPolicy,omitempty"` // "": the Kubernetes default
	LogLevel        string    `yaml:"logLevel,omitempty"`        // "": the adapter's default
	Port            uint16    `yaml:"port,omitempty"`            // on 127.0.0.1; 0: 6443
	Resources       Resources `yaml:"resources"`
}

// Resources are Kubernetes quantities; "" omits one.
type Resources struct {
	Requests Amounts `yaml:"requests"`
	// Limits.CPU is set only if all containers of the pod have a CPU limit. There it keeps the QoS class and
	// satisfies quotas. Elsewhere it would only throttle the adapter.
	Limits Amounts `yaml:"limits"`
}

// Amounts are quantities such as "20m" and "32Mi".
type Amounts struct {
	CPU    string `yaml:"cpu,omitempty" json:"cpu,omitempty"`
	Memory string `yaml:"memory,omitempty" json:"memory,omitempty"`
}

// DefaultSidecar returns the default settings. They have no image.
func DefaultSidecar() Sidecar {
	return Sidecar{Port: defaultPort, Resources: Resources{
		Requests: Amounts{CPU: "20m", Memory: "32Mi"},
		Limits:   Amounts{CPU: "100m", Memory: "64Mi"},
	}}
}

// Ports of the adapter in its pod.
const (
	defaultPort = 6443
	adminPort   = 9006
	metricsPort = 9007
)

// image matches an image reference with a tag or a digest.
var image = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}|@sha256:[0-9a-f]{64})$`)

// Validate returns all errors of the options at once.
func (o Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	s := o.Sidecar
	name := s.Image[strings.LastIndexByte(s.Image, '/')+1:]
	switch {
	case s.Image == "":
		bad("the image of the adapter is missing; give it by digest")
	case !image.MatchString(s.Image) || !strings.Contains(name, ":"):
		bad("the image of the adapter, %.80q, has neither a tag nor a digest", s.Image)
	case strings.HasSuffix(name, ":latest"):
		bad("the image of the adapter, %.80q, has the tag latest, so its content can change; give the image by digest", s.Image)
	}
	switch s.ImagePullPolicy {
	case "", "Always", "IfNotPresent", "Never":
	default:
		bad("imagePullPolicy %.40q: must be Always, IfNotPresent or Never", s.ImagePullPolicy)
	}
	switch s.LogLevel {
	case "", "debug", "info", "warn", "error":
	default:
		bad("logLevel %.40q: must be debug, info, warn or error", s.LogLevel)
	}
	if s.Port != 0 && !validPort(s.Port) {
		bad("port %d: must be 1024 or above, and neither %d nor %d", s.Port, adminPort, metricsPort)
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

func validPort(p uint16) bool { return p >= 1024 && p != adminPort && p != metricsPort }

// KubeVersion is the version of an API server.
type KubeVersion struct{ Major, Minor int }

var kubeVersion = regexp.MustCompile(`^v?([0-9]{1,3})\.([0-9]{1,3})(\.[0-9]+)?\+?([-+][A-Za-z0-9.+-]*)?$`)

// ParseKubeVersion parses a version such as "v1.37.0", "1.29" or a vendor's variant.
func ParseKubeVersion(s string) (KubeVersion, error) {
	m := kubeVersion.FindStringSubmatch(s)
	if m == nil {
		return KubeVersion{}, fmt.Errorf("%.40q is not a version of Kubernetes such as 1.37", s)
	}
	major, _ := strconv.Atoi(m[1]) // at most three digits
	minor, _ := strconv.Atoi(m[2])
	return KubeVersion{major, minor}, nil
}

// lacksSidecars reports whether v is known not to support restartable init containers. A pod with the adapter
// would wait for it forever.
func (v KubeVersion) lacksSidecars() bool {
	return v != KubeVersion{} && (v.Major < 1 || v.Major == 1 && v.Minor < 29)
}

// Outcome is the result of a decision. It is also a metric label.
type Outcome string

// Outcomes. Only Patched has a patch. Only Refused rejects the pod.
const (
	Patched   Outcome = "patched"
	Unchanged Outcome = "unchanged" // the pod already has everything
	Skipped   Outcome = "skipped"   // the pod is not to be injected
	Refused   Outcome = "refused"
)

// Code is the stable name of a reason.
type Code string

// Codes of skipped pods, then of refused pods, in the order of the checks.
const (
	MirrorPod   Code = "mirror_pod"
	OptedOut    Code = "opted_out"
	NotLabelled Code = "not_asked"

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

// Codes returns every code in the order of the documentation.
func Codes() []Code {
	return []Code{MirrorPod, OptedOut, NotLabelled, BadPod, BadLabel, BadAnnotation, ClusterTooOld, HostNetwork, Windows, SharedProcesses,
		NameTaken, PortTaken, RealTokenMounted, CredentialsPathTaken, VariableTaken}
}

// Decision is the decision on one pod.
type Decision struct {
	Outcome  Outcome
	Code     Code     // why the pod was skipped or refused, otherwise ""
	Message  string   // the same for people, with a suggestion
	Patch    Patch    // in the order of application
	Warnings []string // for the creator of the pod
}

// refusal is the reason why a pod cannot have the adapter.
type refusal struct {
	code    Code
	message string
}

func refuse(code Code, format string, args ...any) *refusal {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// Pod decides on a pod or a pod template in JSON. The options must be valid.
func Pod(pod []byte, o Options) Decision {
	root, err := decode(pod)
	if err != nil {
		return Decision{Outcome: Refused, Code: BadPod, Message: "the pod cannot be read: " + err.Error()}
	}
	return decide(root, o)
}

// decide implements Pod for a decoded pod, which it modifies.
func decide(root map[string]any, o Options) Decision {
	p, bad := parsePod(root, o)
	if bad != nil {
		return Decision{Outcome: Refused, Code: bad.code, Message: bad.message}
	}
	if code, why := p.skip(o.Unlabelled); code != "" {
		return Decision{Outcome: Skipped, Code: code, Message: why}
	}
	bad = p.refusal(o)
	if bad == nil {
		v := Decision{Outcome: Patched, Patch: p.inject(o), Warnings: p.warnings}
		if len(v.Patch) == 0 {
			v.Outcome = Unchanged
		}
		return v
	}
	if p.label == "" && o.Unlabelled == TryUnlabelled {
		return Decision{Outcome: Skipped, Code: bad.code, Message: bad.message,
			Warnings: []string{"this pod runs without the adapter that its namespace requests: " + bad.message}}
	}
	return Decision{Outcome: Refused, Code: bad.code, Message: bad.message}
}
