package isolation

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
)

// generatedSecrets matches the names of Secrets that the fleet creates next to the runners. These are
// copies of credentials (see [fleet.CredentialName]), and tokens and configurations of GitLab
// runners (see [TokenName] and [ConfigName]). A shared namespace contains those of all
// organisations.
var generatedSecrets = regexp.MustCompile(`(-[0-9a-f]{8}|-runner-(token|config))$`)

// secretsOf returns the names of the Secrets that processes in a pod can read through the pod. It
// omits image pull secrets, which processes in the pod cannot read.
func secretsOf(s *corev1.PodSpec) (names []string) {
	for _, v := range s.Volumes {
		if v.Secret != nil {
			names = append(names, v.Secret.SecretName)
		}
		if v.CSI != nil && v.CSI.NodePublishSecretRef != nil {
			names = append(names, v.CSI.NodePublishSecretRef.Name)
		}
		if v.Projected != nil {
			for _, p := range v.Projected.Sources {
				if p.Secret != nil {
					names = append(names, p.Secret.Name)
				}
			}
		}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for _, c := range list {
			for _, e := range c.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					names = append(names, e.ValueFrom.SecretKeyRef.Name)
				}
			}
			for _, e := range c.EnvFrom {
				if e.SecretRef != nil {
					names = append(names, e.SecretRef.Name)
				}
			}
		}
	}
	return names
}
