package inject

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Labels and annotations of pods and pod templates.
const (
	domain = "mca.tailplane.dev/"

	// Label requests the adapter ("true") or opts out ("false"). On a namespace it applies to pods without
	// the label.
	Label = domain + "inject"
	// Status is written by injection. It has the hash of the injected parts and the version of the program.
	Status = domain + "status"
	// AutoRestart, set to "true" on a workload, requests a restart of its pods when their adapter is
	// outdated. It has no effect on pods.
	AutoRestart = domain + "auto-restart"
	// RestartedFor is written into the template of such a workload. It is the hash of the adapter for which
	// the pods were restarted.
	RestartedFor = domain + "restarted-for"

	configAnnotation      = domain + "config"             // a ConfigMap in the namespace
	credentialsAnnotation = domain + "credentials"        // Secrets in the namespace, separated by commas
	audiencesAnnotation   = domain + "token-audiences"    // cluster=audience pairs, separated by commas
	portAnnotation        = domain + "port"               // on 127.0.0.1
	metricsAnnotation     = domain + "metrics"            // "true": metrics are served at the pod's address
	excludeAnnotation     = domain + "exclude-containers" // container names, separated by commas
	sharedPIDAnnotation   = domain + "allow-shared-pid"   // "true": containers may see each other's processes
)

// podSettings are the settings of a pod's adapter from its annotations.
type podSettings struct {
	config      string
	credentials []string
	audiences   []audience
	port        uint16
	metrics     bool
	exclude     []string
	sharedPID   bool
}

// audience is that of a projected ServiceAccount token for a cluster.
type audience struct{ cluster, audience string }

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	dnsName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	visible   = regexp.MustCompile(`^[!-~]{1,253}$`)
	separator = ","
)

// parseSettings parses the annotations. An invalid value is an error, because a guess could connect the adapter to the
// wrong cluster.
func parseSettings(annotations map[string]string, standard uint16) (w podSettings, unknown []string, err error) {
	w.port = standard
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, isSetting := strings.CutPrefix(key, domain)
		if !isSetting {
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
			if w.credentials = parseList(v, dnsName); w.credentials == nil {
				wrong = "names of Secrets, separated by commas, each once"
			}
		case audiencesAnnotation:
			if w.audiences = parseAudiences(v); w.audiences == nil {
				wrong = "of the form west=https://west.example.com, separated by commas, each cluster once"
			}
		case portAnnotation:
			n, bad := strconv.ParseUint(v, 10, 16)
			if w.port = uint16(n); bad != nil || !validPort(w.port) || strconv.Itoa(int(n)) != v {
				wrong = fmt.Sprintf("a port of 1024 or above that is neither %d nor %d", adminPort, metricsPort)
			}
		case metricsAnnotation:
			w.metrics, wrong = parseBool(v)
		case sharedPIDAnnotation:
			w.sharedPID, wrong = parseBool(v)
		case excludeAnnotation:
			if w.exclude = parseList(v, dnsLabel); w.exclude == nil {
				wrong = "names of containers, separated by commas, each once"
			}
		default:
			unknown = append(unknown, name)
		}
		if wrong != "" {
			return podSettings{}, nil, fmt.Errorf("the annotation %s is %.80q; it must be %s", key, v, wrong)
		}
	}
	return w, unknown, nil
}

func parseBool(v string) (is bool, wrong string) {
	if v != "true" && v != "false" {
		return false, `"true" or "false"`
	}
	return v == "true", ""
}

// parseList splits names. It returns nil if a name is invalid or occurs twice.
func parseList(v string, name *regexp.Regexp) []string {
	names := strings.Split(v, separator)
	for i, n := range names {
		if names[i] = strings.TrimSpace(n); !name.MatchString(names[i]) || strings.Contains(names[i], "..") ||
			slices.Contains(names[:i], names[i]) {
			return nil
		}
	}
	return names
}

func parseAudiences(v string) (all []audience) {
	for pair := range strings.SplitSeq(v, separator) {
		cluster, aud, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || !dnsLabel.MatchString(cluster) || !visible.MatchString(aud) ||
			slices.ContainsFunc(all, func(a audience) bool { return a.cluster == cluster }) {
			return nil
		}
		all = append(all, audience{cluster, aud})
	}
	return all
}
