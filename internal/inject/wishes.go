package inject

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Labels and annotations of pods and of pod templates.
const (
	domain = "mca.tailplane.dev/"

	// Label asks for the adapter ("true") or keeps it out ("false"). On a namespace
	// it speaks for the pods that do not say.
	Label = domain + "inject"
	// Status is written by injection: what was injected, and by which version.
	Status = domain + "status"
	// AutoRestart, "true" on a workload, asks for its pods to be made anew when the
	// adapter in them is of another day. On pods it is nothing.
	AutoRestart = domain + "auto-restart"
	// RestartedFor is written into the template of such a workload: the adapter,
	// by its hash, for which its pods were made anew.
	RestartedFor = domain + "restarted-for"

	configAnnotation      = domain + "config"             // a ConfigMap of the namespace
	credentialsAnnotation = domain + "credentials"        // Secrets of the namespace, with commas between
	audiencesAnnotation   = domain + "token-audiences"    // cluster=audience, with commas between
	portAnnotation        = domain + "port"               // of 127.0.0.1
	metricsAnnotation     = domain + "metrics"            // "true": served on the pod's address
	excludeAnnotation     = domain + "exclude-containers" // their names, with commas between
	sharedPIDAnnotation   = domain + "allow-shared-pid"   // "true": containers may see each other's processes
)

// wishes are what the annotations of a pod say of its adapter.
type wishes struct {
	config      string
	credentials []string
	audiences   []audience
	port        uint16
	metrics     bool
	exclude     []string
	sharedPID   bool
}

// An audience is one of a projected ServiceAccount token, for a cluster.
type audience struct{ cluster, audience string }

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	dnsName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	visible   = regexp.MustCompile(`^[!-~]{1,253}$`)
	separator = ","
)

// wish reads the annotations. A value that makes no sense is an error: a guess
// would be an adapter that talks to the wrong cluster.
func wish(annotations map[string]string, standard uint16) (w wishes, unknown []string, err error) {
	w.port = standard
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, ours := strings.CutPrefix(key, domain)
		if !ours {
			continue
		}
		v := annotations[key]
		wrong := ""
		switch key {
		case Status, AutoRestart, RestartedFor:
		case configAnnotation:
			w.config = v
			if !dnsName.MatchString(v) {
				wrong = "the name of a ConfigMap"
			}
		case credentialsAnnotation:
			if w.credentials = list(v, dnsName); w.credentials == nil {
				wrong = "names of Secrets with commas between, each once"
			}
		case audiencesAnnotation:
			if w.audiences = audiences(v); w.audiences == nil {
				wrong = "such as west=https://west.example.com, with commas between, each cluster once"
			}
		case portAnnotation:
			n, bad := strconv.ParseUint(v, 10, 16)
			if w.port = uint16(n); bad != nil || !goodPort(w.port) || strconv.Itoa(int(n)) != v {
				wrong = fmt.Sprintf("a port from 1024 on that is neither %d nor %d", adminPort, metricsPort)
			}
		case metricsAnnotation:
			w.metrics, wrong = truth(v)
		case sharedPIDAnnotation:
			w.sharedPID, wrong = truth(v)
		case excludeAnnotation:
			if w.exclude = list(v, dnsLabel); w.exclude == nil {
				wrong = "names of containers with commas between, each once"
			}
		default:
			unknown = append(unknown, name)
		}
		if wrong != "" {
			return wishes{}, nil, fmt.Errorf("the annotation %s is %.80q; it must be %s", key, v, wrong)
		}
	}
	return w, unknown, nil
}

func truth(v string) (is bool, wrong string) {
	if v != "true" && v != "false" {
		return false, `"true" or "false"`
	}
	return v == "true", ""
}

// list splits names, each of which must match and stand there once; nil if one does not.
func list(v string, name *regexp.Regexp) []string {
	names := strings.Split(v, separator)
	for i, n := range names {
		if names[i] = strings.TrimSpace(n); !name.MatchString(names[i]) || strings.Contains(names[i], "..") || slices.Contains(names[:i], names[i]) {
			return nil
		}
	}
	return names
}

func audiences(v string) (all []audience) {
	for pair := range strings.SplitSeq(v, separator) {
		cluster, aud, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || !dnsLabel.MatchString(cluster) || !visible.MatchString(aud) || slices.ContainsFunc(all, func(a audience) bool { return a.cluster == cluster }) {
			return nil
		}
		all = append(all, audience{cluster, aud})
	}
	return all
}
