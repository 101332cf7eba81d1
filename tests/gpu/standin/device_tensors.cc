// Tensors on a device for Horovod without a framework that has one, for tests only: TensorFlow sees no GPU
// here, so that its operations never take Horovod's path through CUDA and NCCL. These calls do.

#include "common/operations.h"

#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

using namespace horovod::common;

namespace {

constexpr int kDevice = 0;

class Memory : public PersistentBuffer {
 public:
  explicit Memory(int64_t size) : bytes_(size) {}
  const void* AccessData(std::shared_ptr<OpContext>) const override { return bytes_.data(); }

 private:
  std::vector<char> bytes_;
};

class DeviceTensor : public Tensor {
 public:
  DeviceTensor(void* data, int64_t count, DataType type) : data_(data), count_(count), type_(type) {}
  const DataType dtype() const override { return type_; }
  const TensorShape shape() const override { return TensorShape({count_}); }
  const void* data() const override { return data_; }
  int64_t size() const override { return count_ * DataType_Size(type_); }

 private:
  void* data_;
  int64_t count_;
  DataType type_;
};

class Context : public OpContext {
 public:
  // Where a gathered result goes.
  explicit Context(std::vector<char>* gathered = nullptr) : gathered_(gathered) {}
  Status AllocatePersistent(int64_t size, std::shared_ptr<PersistentBuffer>* buffer) override {
    *buffer = std::make_shared<Memory>(size);
    return Status::OK();
  }
  Status AllocateOutput(TensorShape shape, std::shared_ptr<Tensor>* tensor,
                        std::shared_ptr<ReadyEvent>*) override {
    gathered_->resize(shape.num_elements() * sizeof(float));
    *tensor = std::make_shared<DeviceTensor>(gathered_->data(), shape.num_elements(), HOROVOD_FLOAT32);
    return Status::OK();
  }
  Status AllocateOutput(int, TensorShape shape, std::shared_ptr<Tensor>* tensor,
                        std::shared_ptr<ReadyEvent>* event) override {
    return AllocateOutput(shape, tensor, event);
  }
  Status AllocateZeros(int64_t, DataType, std::shared_ptr<Tensor>*) override {
    return Status::UnknownError("not needed");
  }
  Framework framework() const override { return Framework::TENSORFLOW; }

 private:
  std::vector<char>* gathered_;
};

// Horovod calls back for every tensor; the caller wants to know when all are done.
struct Waiter {
  StatusCallback callback() {
    auto promise = std::make_shared<std::promise<std::string>>();
    done.push_back(promise->get_future());
    return [promise](const Status& status) { promise->set_value(status.ok() ? "" : "! " + status.reason()); };
  }
  int wait(const Status& enqueued, char* words, size_t room) {
    std::string failure = enqueued.ok() ? "" : "! " + enqueued.reason();
    if (enqueued.ok()) {
      for (auto& each : done) {
        auto said = each.get();
        if (failure.empty()) failure = said;
      }
    }
    std::strncpy(words, failure.c_str(), room);
    return failure.empty() ? 0 : -1;
  }
  std::vector<std::future<std::string>> done;
};

}  // namespace

extern "C" {

// Sum tensors in one group; with more than one they go through the fusion buffer.
int device_sum(const char* name, int tensors, void** in, void** out, const long* counts, int type, double before,
               double after, char* words, size_t room) {
  std::vector<std::shared_ptr<OpContext>> contexts;
  std::vector<std::shared_ptr<Tensor>> inputs, outputs;
  std::vector<ReadyEventList> ready(tensors);
  std::vector<std::string> names;
  std::vector<StatusCallback> callbacks;
  Waiter waiter;
  for (int i = 0; i < tensors; ++i) {
    contexts.push_back(std::make_shared<Context>());
    inputs.push_back(std::make_shared<DeviceTensor>(in[i], counts[i], static_cast<DataType>(type)));
    outputs.push_back(std::make_shared<DeviceTensor>(out[i], counts[i], static_cast<DataType>(type)));
    names.push_back(std::string(name) + "." + std::to_string(i));
    callbacks.push_back(waiter.callback());
  }
  return waiter.wait(EnqueueTensorAllreduces(contexts, inputs, outputs, ready, names, kDevice, callbacks,
                                             ReduceOp::SUM, before, after),
                     words, room);
}

int device_broadcast(const char* name, void* data, long count, int root, char* words, size_t room) {
  Waiter waiter;
  auto tensor = std::make_shared<DeviceTensor>(data, count, HOROVOD_FLOAT32);
  return waiter.wait(EnqueueTensorBroadcast(std::make_shared<Context>(), tensor, tensor, root, ReadyEventList(), name,
                                            kDevice, waiter.callback()),
                     words, room);
}

int device_gather(const char* name, void* data, long count, void* out, long room_out, char* words, size_t room) {
  Waiter waiter;
  std::vector<char> gathered;
  auto code = waiter.wait(EnqueueTensorAllgather(std::make_shared<Context>(&gathered),
                                                 std::make_shared<DeviceTensor>(data, count, HOROVOD_FLOAT32),
                                                 ReadyEventList(), name, kDevice, waiter.callback()),
                          words, room);
  std::memcpy(out, gathered.data(), std::min<size_t>(gathered.size(), room_out));
  return code;
}

}  // extern "C"
