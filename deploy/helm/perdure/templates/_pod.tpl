{{- define "perdure.join" -}}
{{- $root := . -}}
{{- range $i := until (int .Values.coordinator.replicas) -}}
{{- if $i }},{{ end }}{{ $root.Release.Name }}-coordinator-{{ $i }}-0.{{ $root.Release.Name }}:7000
{{- end -}}
{{- end -}}

{{- /* The pod labels that JobSet sets. They select the pods of a replicated job. */ -}}
{{- define "perdure.labels" -}}
jobset.sigs.k8s.io/jobset-name: {{ .root.Release.Name }}
jobset.sigs.k8s.io/replicatedjob-name: {{ .name }}
{{- end -}}

{{- /* One replicated job: of root, its name, replicas, role (of its keys), grace, pods (their values), command, image,
ready (the port of the readiness probe), zone. */ -}}
{{- define "perdure.replicatedJob" -}}
- name: {{ .name }}
  replicas: {{ .replicas }}
  template:
    spec:
      parallelism: 1
      completions: 1
      # Exit code 2 reports invalid settings, and code 5 a failed job: restarting does not help. An evicted pod has
      # not failed.
      {{- if .root.Values.restartJob }}
      backoffLimit: 0
      podFailurePolicy:
        rules:
          - {action: FailJob, onExitCodes: {containerName: perdure, operator: In, values: [2, 5]}}
          - {action: FailJob, onPodConditions: [{type: DisruptionTarget, status: "True"}]}
      {{- else }}
      backoffLimit: 2147483647
      podFailurePolicy:
        rules:
          - {action: FailJob, onExitCodes: {containerName: perdure, operator: In, values: [2, 5]}}
          - {action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}
      {{- end }}
      template:
        metadata:
          labels:
            app.kubernetes.io/name: perdure
            app.kubernetes.io/instance: {{ .root.Release.Name }}
            app.kubernetes.io/component: {{ .role }}
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: {{ .grace }}
          automountServiceAccountToken: false
          enableServiceLinks: false
          securityContext:
            runAsNonRoot: true
            runAsUser: {{ .root.Values.user }}
            runAsGroup: {{ .root.Values.user }}
            # The key files belong to root and are readable by this group, which perdure accepts.
            fsGroup: {{ .root.Values.user }}
            # Otherwise each start would make the storage group-writable, and perdure would reject its secret file.
            fsGroupChangePolicy: OnRootMismatch
            seccompProfile: {type: RuntimeDefault}
          {{- with .root.Values.imagePullSecrets }}
          imagePullSecrets: {{ toJson . }}
          {{- end }}
          {{- $select := merge (dict) .pods.nodeSelector }}
          {{- if .zone }}{{- $_ := set $select "topology.kubernetes.io/zone" .zone }}{{ end }}
          {{- with $select }}
          nodeSelector: {{ toJson . }}
          {{- end }}
          {{- $spot := and .root.Values.spot.enabled (ne .role "coordinator") }}
          affinity:
            {{- if .root.Values.spot.enabled }}
            nodeAffinity:
              {{- if $spot }}
              preferredDuringSchedulingIgnoredDuringExecution:
                - weight: 100
                  preference:
                    matchExpressions:
                      - {key: {{ .root.Values.spot.label }}, operator: In, values: [{{ .root.Values.spot.value }}]}
              {{- else }}
              requiredDuringSchedulingIgnoredDuringExecution:
                nodeSelectorTerms:
                  - matchExpressions:
                      - {key: {{ .root.Values.spot.label }}, operator: NotIn, values: [{{ .root.Values.spot.value }}]}
              {{- end }}
            {{- end }}
            podAntiAffinity:
              {{- $apart := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (dict
                "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/component" .role)) }}
              {{- if and (eq .root.Values.antiAffinity "required") (ne .role "worker") }}
              requiredDuringSchedulingIgnoredDuringExecution: {{ list $apart | toJson }}
              {{- else }}
              preferredDuringSchedulingIgnoredDuringExecution:
                - weight: 100
                  podAffinityTerm: {{ toJson $apart }}
              {{- end }}
          tolerations:
            {{- range list "not-ready" "unreachable" }}
            - {key: node.kubernetes.io/{{ . }}, operator: Exists, effect: NoExecute, tolerationSeconds: {{
              $.root.Values.nodeGone }}}
            {{- end }}
            {{- if $spot }}
            - {key: {{ .root.Values.spot.label }}, operator: Equal, value: {{ .root.Values.spot.value }}}
            {{- end }}
            {{- range .pods.tolerations }}
            - {{ toJson . }}
            {{- end }}
          containers:
            - name: perdure
              image: {{ .image }}
              imagePullPolicy: {{ .root.Values.imagePullPolicy }}
              workingDir: /tmp
              command:
                {{- range .command }}
                - {{ . | quote }}
                {{- end }}
              env:
                - name: PERDURE_INDEX
                  valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/job-index']"}}
                {{- if eq .role "server" }}
                - name: PERDURE_ZONE
                  {{- if .zone }}
                  value: {{ .zone | quote }}
                  {{- else }}
                  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
                  {{- end }}
                {{- end }}
                {{- range .pods.env }}
                - {{ toJson . }}
                {{- end }}
              ports:
                {{- if eq .role "coordinator" }}
                - {name: job, containerPort: 7000}
                {{- else if eq .role "server" }}
                - {name: job, containerPort: 7100}
                {{- end }}
                - {name: metrics, containerPort: 9464}
                {{- /* A host's processes use the ports after its own. Prometheus finds them by name. */ -}}
                {{- $kept := ternary 1 (int .root.Values.workers.perPod) (eq .role "server") }}
                {{- if ne .role "coordinator" }}
                {{- range $i := until $kept }}
                - {name: metrics-{{ $i }}, containerPort: {{ add 9465 $i }}}
                {{- end }}
                {{- end }}
              livenessProbe:
                httpGet: {path: /healthz, port: 9464}
                periodSeconds: 10
                timeoutSeconds: 5
                failureThreshold: 6
              readinessProbe:
                httpGet: {path: /readyz, port: {{ .ready }}}
                periodSeconds: 5
                timeoutSeconds: 5
              resources: {{ toJson .pods.resources }}
              securityContext:
                allowPrivilegeEscalation: false
                readOnlyRootFilesystem: true
                capabilities: {drop: [ALL]}
              volumeMounts:
                - {name: keys, mountPath: /etc/perdure/keys, readOnly: true}
                - {name: scratch, mountPath: /tmp}
                {{- if eq .role "coordinator" }}
                - {name: job, mountPath: /etc/perdure/job, readOnly: true}
                - {name: storage, mountPath: /var/lib/perdure}
                {{- end }}
                {{- range .pods.volumeMounts }}
                - {{ toJson . }}
                {{- end }}
          volumes:
            - {name: keys, secret: {secretName: {{ index .root.Values.keys .role }}, defaultMode: 0400}}
            - {name: scratch, emptyDir: {}}
            {{- if eq .role "coordinator" }}
            - {name: job, configMap: {name: {{ .root.Release.Name }}-job}}
            - name: storage
              persistentVolumeClaim:
                claimName: {{ .root.Values.coordinator.storage.existingClaim | default (print .root.Release.Name "-coordinator") }}
            {{- end }}
            {{- range .pods.volumes }}
            - {{ toJson . }}
            {{- end }}
{{- end -}}
