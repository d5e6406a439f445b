//go:build unix

package arctest

import "fmt"

const podName = "arc-gha-rs-controller-0"

// deployment returns ARC's Deployment as its chart writes it. It has no replicas, because nothing here would run
// them: the fake creates its single pod itself.
func (a *ARC) deployment(version string) []byte {
	strategy, watch, args := "immediate", "", ""
	if a.o.Eventual {
		strategy = "eventual"
	}
	if a.o.Watch != "" {
		watch = "\n    actions.github.com/controller-watch-single-namespace: " + a.o.Watch
		args = ", --watch-single-namespace=" + a.o.Watch
	}
	if a.o.Metrics {
		args += ", --listener-metrics-addr=:8080, --listener-metrics-endpoint=/metrics"
	}
	return fmt.Appendf(nil, `apiVersion: apps/v1
kind: Deployment
metadata:
  name: arc-gha-rs-controller
  namespace: %[1]s
  labels:
    app.kubernetes.io/name: gha-rs-controller
    app.kubernetes.io/instance: arc
    app.kubernetes.io/version: %[2]q
    app.kubernetes.io/part-of: gha-rs-controller
    actions.github.com/controller-service-account-namespace: %[1]s
    actions.github.com/controller-service-account-name: arc-gha-rs-controller%[4]s
spec:
  replicas: 0
  selector: {matchLabels: {app.kubernetes.io/name: gha-rs-controller, app.kubernetes.io/instance: arc}}
  template:
    metadata:
      labels:
        app.kubernetes.io/part-of: gha-rs-controller
        app.kubernetes.io/component: controller-manager
        app.kubernetes.io/version: %[2]q
        app.kubernetes.io/name: gha-rs-controller
        app.kubernetes.io/instance: arc
    spec:
      serviceAccountName: arc-gha-rs-controller
      containers:
      - name: manager
        image: gha-runner-scale-set-controller:%[2]s
        command: [/manager]
        args: [--auto-scaling-runner-set-only, --update-strategy=%[3]s%[5]s]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: arc-gha-rs-controller, namespace: %[1]s}
`, a.o.Namespace, version, strategy, watch, args)
}

// definitions are ARC's kinds with all fields that the fleet and the fake use. Server-side apply rejects other
// fields, as with ARC's own definitions. They cover both versions: the status field is state in 0.13 and phase in
// 0.14.
var definitions = definition("AutoscalingRunnerSet", "autoscalingrunnersets", `
                githubConfigUrl: {type: string}
                githubConfigSecret: {type: string}
                runnerGroup: {type: string}
                runnerScaleSetName: {type: string}
                runnerScaleSetLabels: {type: array, items: {type: string}}
                minRunners: {type: integer, minimum: 0}
                maxRunners: {type: integer, minimum: 0}
                template: {type: object, x-kubernetes-preserve-unknown-fields: true}
                listenerTemplate: {type: object, x-kubernetes-preserve-unknown-fields: true}
                listenerMetrics: {type: object, x-kubernetes-preserve-unknown-fields: true}
                proxy: {type: object, x-kubernetes-preserve-unknown-fields: true}
                githubServerTLS: {type: object, x-kubernetes-preserve-unknown-fields: true}
                vaultConfig: {type: object, x-kubernetes-preserve-unknown-fields: true}`, `
                currentRunners: {type: integer}
                pendingEphemeralRunners: {type: integer}
                runningEphemeralRunners: {type: integer}
                failedEphemeralRunners: {type: integer}
                state: {type: string}
                phase: {type: string}`) +
	definition("AutoscalingListener", "autoscalinglisteners", `
                githubConfigUrl: {type: string}
                githubConfigSecret: {type: string}
                runnerScaleSetId: {type: integer}
                autoscalingRunnerSetNamespace: {type: string}
                autoscalingRunnerSetName: {type: string}
                ephemeralRunnerSetName: {type: string}
                minRunners: {type: integer, minimum: 0}
                maxRunners: {type: integer, minimum: 0}
                image: {type: string}`, "") +
	definition("EphemeralRunnerSet", "ephemeralrunnersets", `
                replicas: {type: integer}
                patchID: {type: integer}
                ephemeralRunnerSpec: {type: object, x-kubernetes-preserve-unknown-fields: true}`, `
                currentReplicas: {type: integer}
                pendingEphemeralRunners: {type: integer}
                runningEphemeralRunners: {type: integer}
                failedEphemeralRunners: {type: integer}
                phase: {type: string}`) +
	definition("EphemeralRunner", "ephemeralrunners", `
                githubConfigUrl: {type: string}
                githubConfigSecret: {type: string}
                runnerScaleSetId: {type: integer}
                metadata: {type: object, x-kubernetes-preserve-unknown-fields: true}
                spec: {type: object, x-kubernetes-preserve-unknown-fields: true}`, `
                ready: {type: boolean}
                phase: {type: string}
                reason: {type: string}
                message: {type: string}
                runnerId: {type: integer, format: int64}
                runnerName: {type: string}
                failures: {type: object, additionalProperties: {type: string, format: date-time}}
                jobRequestId: {type: integer, format: int64}
                jobId: {type: string}
                jobRepositoryName: {type: string}
                jobWorkflowRef: {type: string}
                workflowRunId: {type: integer, format: int64}
                jobDisplayName: {type: string}`)

func definition(kind, plural, spec, status string) string {
	if status == "" {
		status = " {}"
	}
	return fmt.Sprintf(`---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.actions.github.com}
spec:
  group: actions.github.com
  names: {kind: %[2]s, listKind: %[2]sList, plural: %[1]s, singular: %[3]s}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          spec:
            type: object
            properties:%[4]s
          status:
            type: object
            properties:%[5]s
`, plural, kind, plural[:len(plural)-1], spec, status)
}
