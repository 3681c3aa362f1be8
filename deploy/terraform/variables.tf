variable "name" {
  description = "Prefix of all names"
  type        = string
  default     = "acceptance"
}

variable "gpu_nodes" {
  description = "GPU nodes"
  type        = number
  default     = 2
}

variable "gpus_per_node" {
  description = "GPUs of a GPU node, as its flavor has them"
  type        = number
  default     = 8
}

variable "gpu_cpus" {
  description = "CPUs that Slurm gives out on a GPU node"
  type        = number
}

variable "gpu_memory_mb" {
  description = "Memory that Slurm gives out on a GPU node, in MB: a little less than free -m shows"
  type        = number
}

variable "login_image" {
  description = "Image of the login node: Ubuntu 24.04"
  type        = string
}

variable "gpu_image" {
  description = "Image of the GPU nodes: Ubuntu 24.04 with the NVIDIA driver"
  type        = string
}

variable "login_flavor" {
  description = "Flavor of the login node"
  type        = string
}

variable "gpu_flavor" {
  description = "Flavor of the GPU nodes"
  type        = string
}

variable "key_pair" {
  description = "Name of the ssh key pair"
  type        = string
}

variable "external_network_id" {
  description = "Network that the router leads to"
  type        = string
}

variable "subnet" {
  description = "Addresses of the cluster"
  type        = string
  default     = "10.20.0.0/24"
}

variable "ssh_from" {
  description = "Networks from which ssh is let in; nothing is let in by default"
  type        = list(string)
  default     = []
}
