//go:build linux

package podnode

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// honoured are the pod fields that this node implements. A pattern that ends in * includes all fields below.
const honoured = `
nodeName nodeSelector.* schedulerName restartPolicy terminationGracePeriodSeconds
serviceAccountName serviceAccount automountServiceAccountToken
securityContext.runAsUser securityContext.runAsNonRoot
volumes[].name volumes[].emptyDir.medium volumes[].configMap.* volumes[].secret.*
volumes[].downwardAPI.defaultMode volumes[].downwardAPI.items[].path volumes[].downwardAPI.items[].mode volumes[].downwardAPI.items[].fieldRef.*
volumes[].projected.defaultMode volumes[].projected.sources[].serviceAccountToken.* volumes[].projected.sources[].configMap.* volumes[].projected.sources[].secret.*
volumes[].projected.sources[].downwardAPI.items[].path volumes[].projected.sources[].downwardAPI.items[].mode volumes[].projected.sources[].downwardAPI.items[].fieldRef.*
`

// honouredOfContainer are the implemented fields below containers[] and initContainers[].
const honouredOfContainer = `
name image command[] args[] workingDir stdin stdinOnce tty restartPolicy ports[].*
env[].name env[].value env[].valueFrom.fieldRef.* env[].valueFrom.configMapKeyRef.* env[].valueFrom.secretKeyRef.*
envFrom[].prefix envFrom[].configMapRef.* envFrom[].secretRef.*
volumeMounts[].name volumeMounts[].mountPath volumeMounts[].readOnly
securityContext.runAsUser securityContext.runAsNonRoot securityContext.readOnlyRootFilesystem securityContext.allowPrivilegeEscalation
startupProbe.exec.* startupProbe.httpGet.* startupProbe.tcpSocket.* livenessProbe.exec.* livenessProbe.httpGet.* livenessProbe.tcpSocket.*
readinessProbe.exec.* readinessProbe.httpGet.* readinessProbe.tcpSocket.*
lifecycle.preStop.exec.* lifecycle.preStop.httpGet.* lifecycle.preStop.sleep.*
terminationMessagePath
`

// probeNumbers are fields of each of the three probes.
const probeNumbers = "initialDelaySeconds periodSeconds timeoutSeconds successThreshold failureThreshold"

// unkept are common pod fields that this node cannot implement, because it has only one machine user, no cgroups, no
// DNS and one node. A pod with them runs, and an event on the pod names them.
const unkept = `
securityContext.fsGroup securityContext.fsGroupChangePolicy securityContext.runAsGroup securityContext.supplementalGroups[] securityContext.seccompProfile.*
affinity.* topologySpreadConstraints[].* volumes[].emptyDir.sizeLimit
`

const unkeptOfContainer = `
resources.* securityContext.capabilities.* securityContext.seccompProfile.* securityContext.runAsGroup
`

// silent are fields without a noticeable effect here: the API server sets them, or they matter only with several
// nodes or a registry.
const silent = `
dnsPolicy enableServiceLinks priority priorityClassName preemptionPolicy tolerations[].* imagePullSecrets[].*
containers[].imagePullPolicy initContainers[].imagePullPolicy containers[].terminationMessagePolicy initContainers[].terminationMessagePolicy
`

// review is the node's assessment of a pod's fields.
type review struct {
	refused string   // path of a field that the testbed does not support; empty: none
	unkept  []string // paths of fields that are not implemented
}

// examine checks every field of a pod's spec. It rejects fields that are on no list, including those of later
// Kubernetes versions.
func examine(spec corev1.PodSpec) (review, error) {
	b, err := json.Marshal(spec)
	if err != nil {
		return review{}, err
	}
	var tree map[string]any
	if err := json.Unmarshal(b, &tree); err != nil {
		return review{}, err
	}
	keep, lose, ignore := patterns(honoured, ""), patterns(unkept, ""), patterns(silent, "")
	for _, list := range []string{"containers[].", "initContainers[]."} {
		maps.Copy(keep, patterns(honouredOfContainer, list))
		maps.Copy(lose, patterns(unkeptOfContainer, list))
		for _, p := range []string{"startupProbe.", "livenessProbe.", "readinessProbe."} {
			maps.Copy(keep, patterns(probeNumbers, list+p))
		}
	}
	var r review
	walk(tree, "", "", func(path, pattern string, value any) {
		switch {
		case value == false || matches(keep, pattern) || matches(ignore, pattern):
			// false has no effect
		case matches(lose, pattern):
			r.unkept = append(r.unkept, path)
		case r.refused == "":
			r.refused = "spec." + path
		}
	})
	return r, nil
}

func patterns(text, prefix string) map[string]bool {
	m := map[string]bool{}
	for p := range strings.FieldsSeq(text) {
		m[prefix+p] = true
	}
	return m
}

func matches(patterns map[string]bool, path string) bool {
	if patterns[path] {
		return true
	}
	for i, c := range path {
		if c == '.' && patterns[path[:i]+".*"] {
			return true
		}
	}
	return false
}

// walk calls leaf for each value that is not an object or a list, in the order of the paths.
func walk(v any, path, pattern string, leaf func(path, pattern string, value any)) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			walk(v[k], strings.TrimPrefix(path+"."+k, "."), strings.TrimPrefix(pattern+"."+k, "."), leaf)
		}
	case []any:
		for i, x := range v {
			walk(x, fmt.Sprintf("%s[%d]", path, i), pattern+"[]", leaf)
		}
	default:
		leaf(path, pattern, v)
	}
}
